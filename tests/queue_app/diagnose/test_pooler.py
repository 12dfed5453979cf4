"""The doctor recognises a real PgBouncer in front of PostgreSQL."""

import getpass
import socket
import subprocess
from contextlib import suppress

import pytest
from django.db import connection, connections

from queue_app.checks import check_server
from queue_app.core.reasons import Level
from queue_app.diagnose import servers
from tests.support.programs import require
from tests.support.waiting import until

PASSWORD = "not-a-secret"


@pytest.fixture(scope="module")
def program() -> str:
    return require("pgbouncer")


@pytest.fixture
def behind(program, transactional_db, databases, settings, shared_folder):
    """Return a function that starts a PgBouncer with a pool mode and connects the queue through it."""
    started: list[subprocess.Popen] = []

    def start(mode: str) -> None:
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        database = connection.settings_dict
        config = shared_folder / f"{mode}.ini"
        target = {
            "host": database["HOST"], "port": database["PORT"] or 5432, "user": database["USER"],
            "password": database["PASSWORD"], "dbname": database["NAME"],
        }  # fmt: skip
        config.write_text(
            "[databases]\n"
            f"* = {' '.join(f"{name}='{value}'" for name, value in target.items() if value)}\n"
            "[pgbouncer]\n"
            f"listen_addr = 127.0.0.1\nlisten_port = {port}\nunix_socket_dir =\nauth_type = any\n"
            f"pool_mode = {mode}\ndefault_pool_size = 2\nignore_startup_parameters = options,extra_float_digits\n"
        )
        config.chmod(0o644)
        as_another = ["-u", "nobody"] if getpass.getuser() == "root" else []  # PgBouncer refuses to run as root
        started.append(
            subprocess.Popen([program, *as_another, str(config)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        )
        until(lambda: _listens(port, started[-1]), "PgBouncer listens")
        pooled = database | {"HOST": "127.0.0.1", "PORT": str(port), "NAME": "pooled", "PASSWORD": PASSWORD}
        databases["pooled"] = pooled
        settings.TASKQUEUE = {**settings.TASKQUEUE, "DATABASE_ALIAS": "pooled"}

    yield start
    if "pooled" in databases:
        connections["pooled"].close()
        del connections["pooled"]
    for process in started:
        process.terminate()
        process.wait(timeout=60)
        process.stdout.close()


def _listens(port: int, process: subprocess.Popen) -> bool:
    assert process.poll() is None, process.stdout.read()
    with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
        return True
    return False


def test_transaction_pooling_must_be_configured(behind, django_db_blocker, override):
    behind("transaction")
    [finding] = servers.check_pooler()
    assert (finding.level, "pools transactions, and Django does not know" in finding.message) == (Level.FAIL, True)
    assert [found.id for found in check_server(databases=["pooled"])] == ["queue_app.E011"]
    override(connections["pooled"].settings_dict, DISABLE_SERVER_SIDE_CURSORS=True)
    assert check_server(databases=["pooled"]) == []
    [finding] = servers.check_pooler()
    assert (finding.level, "Django knows" in finding.message) == (Level.OK, True)


def test_session_pooling_is_fine(behind):
    behind("session")
    [finding] = servers.check_pooler()
    assert (finding.level, "whole sessions" in finding.message) == (Level.OK, True)
