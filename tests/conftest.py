"""Servers for the tests, and their division among several processes.

Django reads the addresses of the servers when its settings are imported, so they are started while this file is
imported, before pytest-django looks for settings. With DATABASE_URL or REDIS_URL in the environment those servers are
used instead: PostgreSQL gets a separate database (test_...), Redis a key prefix.

A server that does not start ends the run; no test is skipped because a server is missing. Tests that need a program of
the system (promtool, Chromium, ...) are skipped if it is missing; with CI set, a skipped test is a failed one.

The whole suite is divided among processes by pytest-xdist. Each has servers of its own, because tests flush them, kill
their connections and read their locks; a test marked ``serial`` runs while all other processes wait.
"""

import atexit
import os
import signal
import sys
import tempfile
from collections.abc import Callable, Generator, Iterator
from contextlib import suppress
from pathlib import Path

import django
import pytest
from django.conf import settings
from hypothesis import HealthCheck, settings as hypothesis_settings
from redis import RedisError

from taskqueue_project.embedded import EmbeddedError, EmbeddedServers
from tests.support.programs import summary
from tests.support.turns import turn

ADDRESSES = {"postgres": "DATABASE_URL", "valkey": "REDIS_URL"}
#: The name of this process among those of pytest-xdist, "" in the one that was started.
DIVISION = os.environ.get("PYTEST_XDIST_WORKER", "")
#: Folders whose tests start many processes or browsers, or judge every pair. ``./dev slow`` runs them.
SLOW = (
    "audits",
    "browser",
    "docs/test_build.py",
    "explorer",
    "integration",
    "packaging",
    "queue_app/admin/test_audit_walk.py",
    "queue_app/admin/test_pseudo_language.py",
    "queue_app/api/test_served.py",
    "queue_app/api/test_slow_clients.py",
    "queue_app/index/test_model.py",
    "queue_app/what_if/test_engine.py",
    "queue_app/what_if/test_invariants.py",
    "queue_app/what_if/test_operation.py",
    "queue_app/what_if/test_simulate.py",
    "queue_app/what_if/test_trials.py",
    "servers",
    "taskqueue_project/embedded",
    "taskqueue_project/quickstart",
    "taskqueue_project/test_deploy.py",
    "workers/test_healing.py",
    "workers/test_lifecycle.py",
    "workers/test_newer_schema.py",
    "workers/test_operation.py",
    "workers/test_printed.py",
    "workers/test_steps_killed.py",
    "workers/test_supervisor.py",
)
#: One more than cores, because tests also wait. Beyond these servers and the processes that tests start want the cores.
MOST_PROCESSES = 4


def _start_servers() -> None:
    """Start what the environment does not name.

    The process that was started runs no tests when there are others: the first of these takes over its servers.
    """
    missing = [kind for kind, variable in ADDRESSES.items() if not os.environ.get(variable)]
    if not DIVISION:
        os.environ["TASKQUEUE_TEST_SERVERS"] = " ".join(missing)
    elif DIVISION != "gw0":
        missing = os.environ["TASKQUEUE_TEST_SERVERS"].split()
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


# A shell lets a command in the background ignore Ctrl-C, and nohup lets it ignore a closed terminal. The processes that
# tests start would inherit that; they do not inherit a handler.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
    signal.signal(signal.SIGHUP, lambda *_: None)

# As ./dev does: without bytecode every process that a test starts would compile what it imports anew.
if os.environ.pop("PYTHONDONTWRITEBYTECODE", None):
    sys.dont_write_bytecode = False

# Time limits of examples fail on a loaded machine, although nothing is wrong.
hypothesis_settings.register_profile("suite", deadline=None, suppress_health_check=[HealthCheck.too_slow])
hypothesis_settings.load_profile("suite")

if settings.configured:
    sys.exit("Unset DJANGO_SETTINGS_MODULE (and --ds): the tests choose their settings after starting the servers.")
_start_servers()
_configure_django()

if not DIVISION:
    _turns = tempfile.NamedTemporaryFile(prefix="taskqueue-turns-")  # noqa: SIM115 - all processes use it, to the end
    atexit.register(_turns.close)
    os.environ["TASKQUEUE_TEST_TURNS"] = _turns.name


@pytest.hookimpl(tryfirst=True)
def pytest_cmdline_main(config: pytest.Config) -> None:
    """Divide the whole suite; part of it, and tests on servers that were given, run in the process that was started."""
    options = config.option
    if DIVISION:
        return
    part = any(getattr(options, name, False) for name in ("keyword", "lf", "stepwise", "usepdb"))
    whole = config.args_source is pytest.Config.ArgsSource.TESTPATHS and not part and options.capture != "no"
    os.environ["TASKQUEUE_TEST_CHOICE"] = "slow" if options.slow else "quick" if whole else "named"
    ours = len(os.environ["TASKQUEUE_TEST_SERVERS"].split()) == len(ADDRESSES)
    # Otherwise the caller chose a number, or there is no pytest-xdist.
    if getattr(options, "numprocesses", 0) is None and whole and ours and (os.cpu_count() or 1) > 1:
        options.numprocesses = min((os.cpu_count() or 1) + 1, MOST_PROCESSES)
        options.dist = "worksteal"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--slow", action="store_true", help="run the slow tests, which a run of all tests leaves out")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Choose the slow tests or the others, where the caller has not named tests."""
    choice = os.environ["TASKQUEUE_TEST_CHOICE"]
    if choice == "named":
        return
    chosen, others = [], []
    for item in items:
        place = item.path.relative_to(Path(__file__).parent).as_posix()
        is_slow = place.startswith(SLOW) or item.get_closest_marker("slow") is not None
        (chosen if is_slow == (choice == "slow") else others).append(item)
    items[:] = chosen
    config.hook.pytest_deselected(items=others)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_setupnodes() -> None:
    """Let the others start their servers before Django reads its settings, as this process did."""
    del os.environ["DJANGO_SETTINGS_MODULE"]


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Run a test marked ``serial`` while no other process runs one."""
    if not DIVISION:
        return (yield)
    with turn(os.environ["TASKQUEUE_TEST_TURNS"], alone=item.get_closest_marker("serial") is not None):
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Fail skipped tests in CI, which has all programs; a backend may still skip a feature that it lacks."""
    report = yield
    if report.skipped and not hasattr(report, "wasxfail") and os.environ.get("CI"):
        reason = str(report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr)
        if reason.startswith("Skipped: This backend "):  # queue_app.testing.conformance
            return report
        report.outcome, report.longrepr = "failed", f"{item.nodeid}: not skipped in CI. {reason}"
    return report


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> Generator[None, object, object]:
    """Say in the last line which groups of tests were skipped because a program is missing."""
    try:
        return (yield)
    finally:
        skipped = terminalreporter.stats.get("skipped", [])
        if line := summary(str(report.longrepr) for report in skipped):
            terminalreporter.write_line(line, yellow=True)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Let tests of both ways run once in each."""
    mark = metafunc.definition.get_closest_marker("both_ways")
    if mark and mark.args != (False,) and "index_way" in metafunc.fixturenames:
        from queue_app.core import rooms  # noqa: PLC0415 - needs the settings

        metafunc.parametrize("index_way", ["redis", *({"rows"} & {room.name for room in rooms.present()})])


def _remove_index() -> None:
    """Delete the keys of this test process, and no others."""
    from django_redis import get_redis_connection  # noqa: PLC0415 - needs the settings

    from queue_app.index.notifier import _notifiers  # noqa: PLC0415 - the same

    for notifier in list(_notifiers):  # an event that is still on its way would stand in the next test's stream
        with suppress(RedisError):
            notifier.flush()
    client = get_redis_connection("default")
    keys = list(client.scan_iter(match=f"*{settings.TASKQUEUE['KEY_PREFIX']}*", count=1000))
    if keys:
        client.unlink(*keys)


@pytest.fixture(autouse=True)
def notify_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Send each index notification at once: many tests read Redis right after an enqueue."""
    monkeypatch.setattr("queue_app.index.notifier.GATHER_SECONDS", 0.0)


@pytest.fixture
def known_tasks() -> Iterator[dict[str, object]]:
    """The tasks that this process knows, by type. What a test adds or takes away is forgotten at its end."""
    from queue_app import registry  # noqa: PLC0415 - needs the settings

    tasks = dict(registry._tasks)
    yield registry._tasks
    registry._tasks.clear()
    registry._tasks.update(tasks)


@pytest.fixture
def testing_backend(settings: object, db: None) -> None:
    """Let tasks run by the testing kit, in the transaction of the test."""
    settings.TASKS = {"default": {"BACKEND": "queue_app.testing.TestingBackend", "QUEUES": []}}  # type: ignore[attr-defined]


@pytest.fixture(autouse=True)
def no_known_outage() -> None:
    """Let each test log its outages, of which a process logs one a minute, and begin with Redis."""
    from queue_app.index import redis_is_away  # noqa: PLC0415 - needs the settings
    from queue_app.telemetry import outage_over  # noqa: PLC0415 - the same

    outage_over()
    redis_is_away.clear()


@pytest.fixture(autouse=True)
def whole_rebuilds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let each worker or scheduler that rebuilds the index wait for the end, however busy the machine is."""
    for name in ("OPEN_SECONDS", "LOAD_SECONDS"):
        monkeypatch.setattr(f"queue_app.services.repair.rebuild.{name}", 60.0)


@pytest.fixture(autouse=True)
def clean_index() -> Iterator[Callable[[], None]]:
    """Delete the index after each test, because the rows of the test are rolled back."""
    yield _remove_index
    _remove_index()


@pytest.fixture(scope="session")
def django_db_setup(django_db_setup: None, django_db_blocker: pytest.FixtureRequest) -> Iterator[None]:
    """Restore only the changed rows after a test with real commits; Django would empty every table."""
    from django.test import TransactionTestCase  # noqa: PLC0415 - needs the settings

    from tests.support.rows import reset_rows  # noqa: PLC0415 - the same
    from tests.support.sessions import assert_no_other_session  # noqa: PLC0415 - the same

    with django_db_blocker.unblock(), pytest.MonkeyPatch.context() as patch:
        reset_rows()
        patch.setattr(TransactionTestCase, "_fixture_teardown", lambda _: reset_rows())
        yield
        assert_no_other_session()


@pytest.fixture
def shared_folder() -> Iterator[Path]:
    """Yield a folder for a server that runs as another user; pytest's folders are private, and it keeps them so."""
    with tempfile.TemporaryDirectory(prefix="taskqueue-tests-", ignore_cleanup_errors=True) as folder:
        Path(folder).chmod(0o711)
        yield Path(folder)


@pytest.fixture
def process_env(transactional_db: None) -> dict[str, str]:
    """Return the environment for a process that uses this test's database and index."""
    from tests.support.serving import environment  # noqa: PLC0415 - needs the settings

    return environment()
