"""The identity of a database: a standby takes it over with the rows, a copy in another cluster has one of its own.

And that of its runs: whatever loses commits that did not wait for the disk begins another.
"""

import os
import signal
import subprocess
from contextlib import suppress

import psycopg
import pytest

from queue_app.sql.claim import RUN
from queue_app.sql.doctor import _CLUSTER, _PLACE
from taskqueue_project.embedded.data_directory import DataDirectory
from taskqueue_project.embedded.postgres import Postgres
from tests.support.waiting import until


def identity(url: str) -> str:
    """Return the identity as the queue asks for it."""
    with psycopg.connect(url, autocommit=True) as connection:
        return "/".join(str(connection.execute(sql).fetchone()[0]) for sql in (_CLUSTER, _PLACE))


def started(server: Postgres) -> Postgres:
    server.start()
    server.wait_until_ready()
    return server


@pytest.fixture
def cluster(shared_folder):
    """Return a function that makes a cluster of its own, or a standby of another one."""
    servers: list[Postgres] = []

    def make(name: str, primary: Postgres | None = None) -> Postgres:
        server = Postgres(DataDirectory(shared_folder / name), durable=False)
        servers.append(server)
        if primary:
            options = server.spawn_options()
            folder = server.directory
            folder.mkdir(mode=0o700)
            if "user" in options:
                os.chown(folder, options["user"], options["group"])
            copy = [str(server.binaries / "pg_basebackup"), "-D", str(folder), "-d", primary.url(), "-R", "-c", "fast"]
            subprocess.run(copy, check=True, capture_output=True, **options)
        return started(server)

    yield make
    for server in servers:
        server.stop()


def at(server: Postgres, primary: Postgres) -> str:
    """Return the address of a standby, which has the passwords of its primary."""
    return primary.url().replace(f":{primary.port}/", f":{server.port}/")


def test_a_failover_keeps_the_identity_and_a_copy_elsewhere_does_not(cluster):
    primary = cluster("primary")
    before = identity(primary.url())
    standby = cluster("standby", primary)
    primary.stop()
    with psycopg.connect(at(standby, primary), autocommit=True) as connection:
        connection.execute("SELECT pg_promote()")
        until(lambda: not connection.execute("SELECT pg_is_in_recovery()").fetchone()[0], "it is the primary")
        connection.execute("CREATE DATABASE staging TEMPLATE taskqueue")
        connection.execute("CREATE ROLE plain LOGIN PASSWORD 'plain'")
    assert identity(at(standby, primary)) == before

    assert identity(at(standby, primary).replace("/taskqueue", "/staging")) != before, "a copy in the same cluster"
    assert identity(cluster("elsewhere").url()) != before, "where a dump is restored"
    _, _, server = at(standby, primary).rpartition("@")
    assert identity(f"postgresql://plain:plain@{server}") == before, "which any role may ask"


def test_a_crash_of_one_process_begins_another_run(cluster):
    """The main process continues, and starts all others anew."""
    server = cluster("rows")

    def run() -> str | None:
        with suppress(psycopg.OperationalError), psycopg.connect(server.url(), autocommit=True) as connection:
            return connection.execute(f"SELECT {RUN}").fetchone()[0]
        return None

    before = run()
    assert run() == before
    with psycopg.connect(server.url(), autocommit=True) as victim:
        os.kill(victim.info.backend_pid, signal.SIGKILL)
        until(lambda: run() not in (None, before), "PostgreSQL has recovered")


def test_a_standby_is_another_run(cluster):
    primary = cluster("primary")
    standby = cluster("standby", primary)
    with psycopg.connect(primary.url()) as one, psycopg.connect(at(standby, primary)) as other:
        assert one.execute(f"SELECT {RUN}").fetchone() != other.execute(f"SELECT {RUN}").fetchone()
