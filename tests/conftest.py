"""Servers for the tests, and an index of its own for each test process.

Django reads the addresses of the servers when its settings are imported, so they are started while this file is
imported, before pytest-django looks for settings. With DATABASE_URL or REDIS_URL in the environment those servers are
used instead: PostgreSQL gets a separate database (test_...), Redis a key prefix.

A server that does not start ends the run. No test is ever skipped for the lack of one. Tests that need a program of the
system (promtool, Chromium, ...) are skipped where it is missing; with CI set, a skipped test is a failed one.
"""

import atexit
import os
import sys
import tempfile
from collections.abc import Callable, Generator, Iterator
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from urllib.parse import quote

import django
import pytest
from django.conf import settings

from taskqueue_project.embedded import EmbeddedError, EmbeddedServers

ADDRESSES = {"postgres": "DATABASE_URL", "valkey": "REDIS_URL"}


def _start_servers() -> None:
    """Start what the environment does not name, once a run: processes of pytest-xdist inherit the addresses."""
    missing = [kind for kind, variable in ADDRESSES.items() if not os.environ.get(variable)]
    if not missing:
        return
    servers = EmbeddedServers(Path(tempfile.mkdtemp(prefix="taskqueue-tests-")), only=missing, throwaway=True)
    try:
        servers.start()
    except EmbeddedError as error:
        pytest.exit(f"The servers for the tests did not start: {error}", returncode=3)
    atexit.register(servers.stop)
    if servers.database_url:
        os.environ["DATABASE_URL"] = servers.database_url
    if servers.redis_url:
        os.environ["REDIS_URL"] = servers.redis_url


def _configure_django() -> None:
    """Load the settings; the number of the run becomes part of the key prefix."""
    os.environ.setdefault("TASKQUEUE_TEST_RUN", str(os.getpid()))
    os.environ["DJANGO_SETTINGS_MODULE"] = "taskqueue_project.settings.test"
    # Looked at, so that pytest-django finds the settings configured and sets Django up.
    assert settings.TASKQUEUE
    # The conftest.py of a folder may import models; pytest loads it before pytest-django sets Django up.
    django.setup()


if settings.configured and "PYTEST_XDIST_WORKER" not in os.environ:
    sys.exit("Unset DJANGO_SETTINGS_MODULE (and --ds): the tests choose their settings after starting the servers.")
_start_servers()
_configure_django()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Let no test be skipped in CI: ``.ci/run`` installs what they need."""
    report = yield
    if report.skipped and not hasattr(report, "wasxfail") and os.environ.get("CI"):
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr
        report.outcome, report.longrepr = "failed", f"{item.nodeid}: not skipped in CI. {reason}"
    return report


def _remove_index() -> None:
    """Delete the keys of this test process, and no others."""
    from django_redis import get_redis_connection  # noqa: PLC0415 - needs the settings

    client = get_redis_connection("default")
    keys = list(client.scan_iter(match=f"*{settings.TASKQUEUE['KEY_PREFIX']}*", count=1000))
    if keys:
        client.unlink(*keys)


@pytest.fixture(autouse=True)
def hints_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Send each hint at once: many tests look into Redis themselves, right after an enqueue."""
    monkeypatch.setattr("queue_app.index.poster.GATHER_SECONDS", 0.0)


@pytest.fixture(autouse=True)
def clean_index() -> Iterator[Callable[[], None]]:
    """Leave no index behind: rows are rolled back after a test, and the index must not remember them."""
    yield _remove_index
    _remove_index()


def _restore_default_rows(using: str, **_: object) -> None:
    """Put back what a migration wrote: the flush after a test with transactions empties every table."""
    from django.apps import apps  # noqa: PLC0415 - needs the settings
    from django.db import connections  # noqa: PLC0415

    defaults = import_module("queue_app.migrations.0002_defaults")
    defaults.create_rows(apps, SimpleNamespace(connection=connections[using]))


@pytest.fixture(autouse=True, scope="session")
def default_rows() -> Iterator[None]:
    """Keep the rows of the migrations through the whole run; Django announces each flush like a migration."""
    from django.apps import apps  # noqa: PLC0415 - needs the settings
    from django.db.models.signals import post_migrate  # noqa: PLC0415

    sender = apps.get_app_config("queue_app")
    post_migrate.connect(_restore_default_rows, sender=sender)
    yield
    post_migrate.disconnect(_restore_default_rows, sender=sender)


@pytest.fixture
def process_env(transactional_db: None) -> dict[str, str]:
    """Return the environment for a process that shall work on this test's database and index."""
    from django.db import connection  # noqa: PLC0415 - needs the settings

    parameters = connection.settings_dict
    address = f"{parameters['HOST']}:{parameters['PORT']}" if parameters["PORT"] else parameters["HOST"]
    user = ":".join(quote(parameters[name], safe="") for name in ("USER", "PASSWORD") if parameters[name])
    return os.environ | {
        "DATABASE_URL": f"postgresql://{user}@{address}/{parameters['NAME']}",
        "PYTHONPATH": str(Path(__file__).parent.parent),
        "PYTHONWARNINGS": "default",
    }
