"""The embedded servers keep their data, need a password, and never outlive their owner."""

import contextlib
import json
import os
import signal
import stat
import subprocess
import sys
import tempfile
from pathlib import Path

import psutil
import psycopg
import pytest
import redis

from taskqueue_project.embedded import EmbeddedError, EmbeddedServers
from taskqueue_project.embedded.data_directory import DataDirectory

ROOT = Path(__file__).parent.parent.parent.parent
OWNER = """
import signal, sys
from pathlib import Path
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell may have started the tests deaf to it
from taskqueue_project.embedded import EmbeddedServers
EmbeddedServers(Path(sys.argv[1])).start()
print("ready", flush=True)
signal.pause()
"""


@pytest.fixture
def fresh(shared_folder):
    """A new directory; processes that still use it at the end of the test are killed."""
    yield shared_folder / "data"
    for process in server_processes(shared_folder / "data"):
        process.kill()


@pytest.fixture(scope="module")
def stopped():
    """A directory in which both servers have run; created once, because this is slow."""
    with tempfile.TemporaryDirectory(prefix="taskqueue-tests-") as folder:
        with EmbeddedServers(Path(folder) / "data"):
            pass
        yield Path(folder) / "data"


@pytest.fixture
def directory(stopped, fresh):
    """A copy for one test."""
    subprocess.run(["cp", "-a", stopped, fresh], check=True)
    return fresh


def server_processes(directory):
    memory = directory / "servers.json"
    recorded = json.loads(memory.read_text()) if memory.exists() else {}
    for kind in ("postgres", "valkey"):
        with contextlib.suppress(psutil.NoSuchProcess, TypeError):
            pid, created = recorded.get(f"{kind}_process")
            process = psutil.Process(pid)
            if abs(process.create_time() - created) < 1:
                yield process


def wait_until_gone(processes):
    _, alive = psutil.wait_procs(processes, timeout=30)
    return not alive


def test_data_ports_and_passwords_survive_a_restart(fresh):
    with EmbeddedServers(fresh) as servers:
        before = servers.database_url, servers.redis_url
        with psycopg.connect(servers.database_url) as connection:
            connection.execute("CREATE TABLE kept AS SELECT 42 AS answer")
        with redis.from_url(servers.redis_url) as client:
            client.set("kept", "42")
    with EmbeddedServers(fresh) as servers:
        assert (servers.database_url, servers.redis_url) == before
        with psycopg.connect(servers.database_url) as connection:
            assert connection.execute("SELECT answer FROM kept").fetchone() == (42,)
        with redis.from_url(servers.redis_url) as client:
            assert client.get("kept") == b"42"


def test_clients_need_the_password(directory):
    with EmbeddedServers(directory) as servers:
        wrong = psycopg.conninfo.make_conninfo(servers.database_url, password="guess")
        with pytest.raises(psycopg.OperationalError, match="password authentication failed"):
            psycopg.connect(wrong)
        address = servers.redis_url.split("@")[1]
        with redis.from_url(f"redis://{address}") as client, pytest.raises(redis.AuthenticationError):
            client.ping()
    for name in ("servers.json", "valkey/valkey.conf"):
        assert stat.S_IMODE((directory / name).stat().st_mode) == 0o600


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_the_servers_end_with_their_owner(directory, number):
    with subprocess.Popen(
        [sys.executable, "-c", OWNER, str(directory)], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as owner:
        assert owner.stdout.readline() == b"ready\n"
        processes = list(server_processes(directory))
        assert len(processes) == 2
        owner.send_signal(number)
        try:
            owner.wait(60)
        finally:
            owner.kill()
    assert wait_until_gone(processes)


def test_servers_that_outlived_their_guard_are_replaced(directory):
    before = set(psutil.Process().children())
    servers = EmbeddedServers(directory).start()
    orphans = list(server_processes(directory))
    [guard] = set(psutil.Process().children()) - before
    guard.kill()
    guard.wait()
    servers.stop()
    assert all(process.is_running() for process in orphans)
    with EmbeddedServers(directory) as servers:
        assert wait_until_gone(orphans)
        with psycopg.connect(servers.database_url) as connection:
            assert connection.execute("SELECT 1").fetchone() == (1,)


def test_a_lock_file_with_the_pid_of_another_process_is_removed(directory):
    stale = directory / "postgres" / "postmaster.pid"
    stale.write_text(f"{os.getpid()}\n{directory}/postgres\n1700000000\n5432\n\n127.0.0.1\n1 2\nready\n")
    with EmbeddedServers(directory, only=["postgres"]) as servers, psycopg.connect(servers.database_url) as connection:
        assert connection.execute("SELECT 1").fetchone() == (1,)


def test_a_used_port_is_replaced(fresh):
    with EmbeddedServers(fresh, only=["valkey"]) as servers:
        taken = servers.redis_url
        other = fresh.parent / "other"
        DataDirectory(other).remember(valkey_port=int(taken.split(":")[-1].split("/")[0]))
        with EmbeddedServers(other, only=["valkey"]) as second, redis.from_url(second.redis_url) as client:
            assert client.ping()


def test_a_throwaway_directory_is_removed(fresh):
    with EmbeddedServers(fresh, throwaway=True):
        assert fresh.exists()
    assert not fresh.exists()


def test_a_server_that_cannot_start_says_why(directory):
    (directory / "postgres" / "PG_VERSION").write_text("9\n")
    with pytest.raises(EmbeddedError, match=r"(?s)postgres ended while starting.*incompatible.*postgres.log"):
        EmbeddedServers(directory, only=["postgres"]).start()


def test_one_directory_serves_one_process_at_a_time(tmp_path):
    data = DataDirectory(tmp_path)
    probe = f"""
from pathlib import Path
from taskqueue_project.embedded.data_directory import DataDirectory
with DataDirectory(Path({str(tmp_path)!r})).locked("lock"): pass
"""
    with data.locked("lock"):
        result = subprocess.run([sys.executable, "-c", probe], cwd=ROOT, capture_output=True, text=True, check=False)
    assert result.returncode == 1
    assert f"is in use by process {os.getpid()}" in result.stderr
    subprocess.run([sys.executable, "-c", probe], cwd=ROOT, check=True)


def test_a_damaged_file_is_reported(tmp_path):
    (tmp_path / "servers.json").write_text("{")
    with pytest.raises(EmbeddedError, match=r"servers\.json is damaged"):
        DataDirectory(tmp_path).recall("x")
