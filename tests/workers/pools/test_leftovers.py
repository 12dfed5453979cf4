"""What a task leaves behind does not reach the next task in its slot."""

import decimal
import json
import os
import signal
import uuid
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from pathlib import Path

import psycopg
import pytest
from asgiref.sync import sync_to_async
from django.core.cache import caches
from django.db import connection, transaction
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.backends.postgresql.base import DatabaseWrapper
from django.db.backends.signals import connection_created
from django.tasks import task_backends
from django.utils import timezone, translation
from psycopg.rows import dict_row
from psycopg.sql import SQL, Identifier

from queue_app import task
from queue_app.core.records import Outcome
from queue_app.sql.database import fetch_value
from queue_app.workers import sessions
from queue_app.workers.pools import threads
from queue_app.workers.pools.asynchronous import AsyncPool
from queue_app.workers.pools.processes import ProcessPool
from queue_app.workers.pools.threads import ThreadPool
from tests.support.sessions import connections_kept
from tests.support.waiting import until
from tests.workers.pools.stand import opened, outcomes
from tests.workers.test_executor import claimed

pytestmark = pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")

SESSION = """SELECT pg_backend_pid(), current_setting('search_path'), current_setting('role'),
    current_setting('TimeZone'), current_setting('transaction_isolation'),
    nullif(current_setting('shop.tenant', true), ''),
    (SELECT count(*) FROM pg_listening_channels()), (SELECT count(*) FROM pg_prepared_statements WHERE from_sql),
    (SELECT count(*) FROM pg_cursors WHERE is_holdable), (SELECT count(*) FROM pg_class WHERE relname = 'leftover'),
    (SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid())"""


def execute(*statements: object, to: Callable[[], object] = lambda: None) -> None:
    """Run statements with Django's cursor."""
    with connection.cursor() as cursor:
        for sql in statements:
            cursor.execute(sql)


def fail_in_transaction() -> None:
    execute("BEGIN")
    with pytest.raises(Exception, match="division"):
        execute("SELECT 1/0")


def use_driver() -> None:
    execute("SELECT 1")
    connection.connection.row_factory = dict_row


LEFT = {
    "atomic": lambda: transaction.atomic().__enter__(),
    "atomic and a query": lambda: (transaction.atomic().__enter__(), execute("SELECT 1")),
    "nested atomic": lambda: (transaction.atomic().__enter__(), transaction.atomic().__enter__()),
    "atomic, closed": lambda: (transaction.atomic().__enter__(), connection.close()),
    "BEGIN": lambda: execute("BEGIN"),
    "failed transaction": fail_in_transaction,
    "autocommit": lambda: connection.set_autocommit(False),
    "autocommit and a query": lambda: (connection.set_autocommit(False), execute("SELECT 1")),
    "SET search_path": lambda: execute("SET search_path = pg_catalog"),
    "composed SET": lambda: execute(SQL("SET {} TO pg_catalog").format(Identifier("search_path"))),
    "SET in a list": lambda: execute("SELECT 1; SET search_path TO pg_catalog"),
    "SET ROLE": lambda: execute("/* who */ SET ROLE pg_read_all_data"),
    "SET TIME ZONE": lambda: execute("set time zone 'Asia/Tokyo'"),
    "RESET ALL": lambda: execute("RESET ALL"),
    "isolation": lambda: execute("SET SESSION CHARACTERISTICS AS TRANSACTION ISOLATION LEVEL SERIALIZABLE"),
    "set_config": lambda: execute("SELECT set_config('shop.tenant', '7', false)"),
    "temporary table": lambda: execute("CREATE TEMPORARY TABLE leftover (a int)"),
    "LISTEN": lambda: execute("LISTEN shop"),
    "advisory lock": lambda: (
        execute("SELECT pg_advisory_lock(7)", "SELECT pg_advisory_lock(7)") or execute("SELECT pg_advisory_unlock(7)")
    ),
    "PREPARE": lambda: execute("PREPARE one AS SELECT 1"),
    "cursor": lambda: execute("DECLARE one CURSOR WITH HOLD FOR SELECT 1"),
    "driver": use_driver,
}


@task
def leaves_behind(kind: str) -> None:
    """Leave something in the session."""
    LEFT[kind]()


@task
def closes_driver() -> None:
    """Close the driver's connection behind Django's back."""
    execute("SELECT 1")
    connection.connection.close()


@task
def session() -> list[object]:
    """Describe the session."""
    with connection.cursor() as cursor:
        cursor.execute(SESSION)
        return list(cursor.fetchone())


@task
def store(name: str) -> None:
    """Store a row without a transaction of its own."""
    with connection.cursor() as cursor:
        cursor.execute("INSERT INTO auth_group (name) VALUES (%s)", [name])


def is_stored(name: str) -> bool:
    """Whether another session sees the row."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT count(*) FROM auth_group WHERE name = %s", [name])
        return bool(cursor.fetchone()[0])


@pytest.fixture
def persistent(engine) -> Iterator[None]:
    """Let connections stay open between tasks."""
    with connections_kept(None):
        yield


@pytest.fixture
def default_age(engine) -> Iterator[None]:
    """Let web processes close a connection after each request, as Django does by default."""
    with connections_kept(0):
        yield


@pytest.fixture
def pool() -> Iterator[ThreadPool]:
    with opened("threads") as made:
        yield made


@pytest.fixture
def processes() -> Iterator[ProcessPool]:
    with opened("processes") as made:
        yield made


@pytest.fixture
def coroutines() -> Iterator[AsyncPool]:
    with opened("async", 2) as made:
        yield made


def outcome(pool, function, *args) -> Outcome:
    """Run a task in the pool's only slot, and return its outcome."""
    pool.submit([claimed(function, *args)])
    return outcomes(pool)[0]


def run(pool, function, *args) -> object:
    """Do the same for a task that succeeds, and return its result."""
    found = outcome(pool, function, *args)
    assert found.failure is None, found.failure
    return json.loads(found.result) if found.result else None


@pytest.mark.parametrize("kind", LEFT)
def test_a_session_that_is_not_as_it_was_is_closed(persistent, pool, caplog, kind):
    before = run(pool, session)
    assert (outcome(pool, leaves_behind, kind).failure is None) == (kind != "failed transaction")
    after = run(pool, session)
    assert after[0] != before[0]
    assert after[1:] == before[1:]
    lines = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert len(lines) == 1
    assert "test_leftovers.leaves_behind" in lines[0]
    name = f"{kind}-{uuid.uuid4().hex}".replace(" ", "-").lower()
    run(pool, store, name)
    assert is_stored(name)


def test_a_connection_that_the_driver_closed_is_replaced(persistent, pool, caplog):
    run(pool, closes_driver)
    run(pool, session)
    assert not caplog.records


TIDY = {
    "nothing": [],
    "SET LOCAL": ["BEGIN", "SET LOCAL search_path = pg_catalog", "SET TRANSACTION READ ONLY", "COMMIT"],
    "set and reset": ["SET ROLE pg_read_all_data", "RESET ROLE", "SET shop.tenant = '1'", "SET shop.tenant TO DEFAULT"],
    "set_config": ["SELECT set_config('shop.tenant', '7', true)"],
    "lock and unlock": [
        "SELECT pg_advisory_lock(7)",
        "SELECT pg_try_advisory_lock(7)",
        "SELECT pg_advisory_unlock_all()",
    ],
    "lock of a transaction": ["SELECT pg_advisory_xact_lock(7)"],
    "LISTEN and UNLISTEN": ["LISTEN shop", "UNLISTEN *"],
    "temporary table, dropped": ["CREATE TEMP TABLE leftover (a int)", "DROP TABLE leftover"],
    "temporary table of a transaction": ["CREATE TEMP TABLE leftover (a int) ON COMMIT DROP"],
    "text": ["SELECT 'set role' AS prepare"],
}


@task
def tidy(statements: list[str]) -> None:
    """Leave nothing behind."""
    execute(*statements)


@pytest.mark.parametrize("kind", TIDY)
def test_a_session_that_is_as_it_was_stays_open(persistent, pool, caplog, kind):
    before = run(pool, session)
    run(pool, tidy, TIDY[kind])
    assert run(pool, session) == before
    assert not caplog.records


def test_a_lock_that_was_refused_does_not_count(persistent, pool, caplog):
    with psycopg.connect(**connection.get_connection_params() | {"context": None}) as other:
        other.execute("SELECT pg_advisory_lock(7)")
        before = run(pool, session)
        run(pool, tidy, ["SELECT pg_try_advisory_lock(7)"])
        assert run(pool, session) == before
    assert not caplog.records


@task
def remembered(statements: int) -> int:
    """Run statements, and return how many of them Django remembers."""
    for _ in range(statements):
        execute("SELECT 1")
    return len(connection.queries_log)


def test_under_debug_a_session_remembers_a_hundred_statements(persistent, pool, settings):
    settings.DEBUG = True
    assert run(pool, remembered, 60) == 60
    assert run(pool, remembered, 60) == 100


@pytest.fixture
def search_path() -> Iterator[None]:
    """Let the project set a search path for each session."""

    def set_path(connection, **_):
        with connection.cursor() as cursor:
            cursor.execute("SET search_path = public, pg_catalog")

    connection_created.connect(set_path)
    yield
    connection_created.disconnect(set_path)


def test_what_the_project_sets_for_each_session_stays(persistent, search_path, pool, caplog):
    before = run(pool, session)
    assert before[1] == "public, pg_catalog"
    assert run(pool, session) == before
    run(pool, leaves_behind, "RESET ALL")
    assert run(pool, session)[1] == "public, pg_catalog"
    assert len(caplog.records) == 1


@pytest.fixture
def tenants(monkeypatch) -> None:
    """Let the database backend select a schema before each statement, as that of django-tenants does."""

    def _cursor(self, name=None):
        cursor = BaseDatabaseWrapper._cursor(self, name)
        cursor.execute(f"SET search_path = {self.schema_name}, public")
        return cursor

    def set_schema(self, name):
        self.schema_name = name

    added = {"schema_name": "public", "_cursor": _cursor, "set_schema": set_schema}
    added["set_schema_to_public"] = lambda self: self.set_schema("public")
    for name, value in added.items():
        monkeypatch.setattr(DatabaseWrapper, name, value, raising=False)


@task
def acts_for(tenant: str) -> list[object]:
    """Work in the schema of a tenant, and stay there."""
    connection.set_schema(tenant)
    return session.func()


def test_a_schema_of_a_tenant_ends_with_the_attempt_and_keeps_the_session(persistent, tenants, pool, caplog):
    before = run(pool, session)
    assert run(pool, acts_for, "pg_catalog")[:2] == [before[0], "pg_catalog, public"]
    assert run(pool, session) == before
    assert not caplog.records


def test_a_process_closes_such_sessions(persistent, processes):
    before = run(processes, session)
    run(processes, leaves_behind, "atomic and a query")
    name = uuid.uuid4().hex
    run(processes, store, name)
    assert is_stored(name)
    run(processes, leaves_behind, "SET search_path")
    assert run(processes, session)[1:] == before[1:]


@task
async def leaves_behind_later(kind: str) -> None:
    """Leave something in the session that all coroutines share."""
    await sync_to_async(LEFT[kind])()


@task
async def store_later(name: str) -> None:
    """Store a row from a coroutine."""
    await sync_to_async(store.call)(name)


@pytest.mark.parametrize("kind", ["atomic", "BEGIN", "SET search_path"])
def test_coroutines_that_share_a_session_do_too(persistent, coroutines, caplog, kind):
    run(coroutines, store_later, uuid.uuid4().hex)
    run(coroutines, leaves_behind_later, kind)
    until(lambda: caplog.records, "the warning")
    name = uuid.uuid4().hex
    run(coroutines, store_later, name)
    assert is_stored(name)
    assert ["leaves_behind_later" in record.getMessage() for record in caplog.records] == [True]


# -- sessions outlive a task, open transactions do not -------------------------------------------------


@task
async def session_later() -> list[object]:
    """Describe the session that coroutines share."""
    return await sync_to_async(session.func)()


@task
def writes_and_leaves(how: str, name: str) -> None:
    """Write a row, and leave the transaction open."""
    if how == "autocommit":
        connection.set_autocommit(False)
    else:
        transaction.atomic().__enter__()
    store.func(name)


@task
async def writes_and_leaves_later(how: str, name: str) -> None:
    """Do the same from a coroutine."""
    await sync_to_async(writes_and_leaves.func)(how, name)


POOLS = {
    "pool": (session, writes_and_leaves),
    "processes": (session, writes_and_leaves),
    "coroutines": (session_later, writes_and_leaves_later),
}


@pytest.mark.parametrize("name", POOLS)
def test_by_default_settings_too_tasks_share_a_session_until_the_server_ends_it(default_age, request, name):
    pool, (describe, _) = request.getfixturevalue(name), POOLS[name]
    first = run(pool, describe)[0]
    if name == "coroutines":  # a loop checks the sessions after it has handed out the outcome
        until(lambda: pool._loop._has_sessions, "the session is known")
        pool._loop._used_at = -100.0  # no task has used it for a while
    assert run(pool, describe)[0] == first
    if name == "coroutines":
        until(lambda: pool._loop._used_at > 0, "the session was checked")
        pool._loop._used_at = -100.0
    with psycopg.connect(**connection.get_connection_params() | {"context": None}) as other:
        other.execute("SELECT pg_terminate_backend(%s, 60000)", [first])
    assert run(pool, describe)[0] != first


@pytest.mark.parametrize("idle", [False, True])
def test_a_session_ends_at_its_age_at_the_next_task_or_while_its_slot_is_idle(default_age, pool, monkeypatch, idle):
    monkeypatch.setattr(sessions if not idle else threads, "KEEP_SECONDS", 0.0)
    first = run(pool, session)[0]
    if idle:
        ended = "SELECT count(*) = 0 FROM pg_stat_activity WHERE pid = %s"
        until(lambda: fetch_value(ended, [first]), "the idle slot has closed it")
    assert run(pool, session)[0] != first


@pytest.mark.parametrize("how", ["autocommit", "atomic"])
@pytest.mark.parametrize("name", POOLS)
def test_a_task_whose_writes_are_not_committed_fails(default_age, request, name, how):
    pool, (_, function) = request.getfixturevalue(name), POOLS[name]
    row = uuid.uuid4().hex
    failure = outcome(pool, function, how, row).failure
    assert failure.exception_class == "queue_app.exceptions.TransactionLeftOpen"
    assert failure.message == (
        "The function returned with an open transaction on the database 'default', so its writes were rolled back. Use"
        " `with transaction.atomic():`, or commit before the function returns."
    )
    assert "check_committed" not in failure.traceback
    assert not is_stored(row)


# -- context ------------------------------------------------------------------------------------------


tenant: ContextVar[str] = ContextVar("tenant", default="")


@task
def changes_context() -> None:
    """Change what Django and Python keep for each context."""
    translation.activate("de")
    timezone.activate("Asia/Tokyo")
    decimal.getcontext().prec = 3
    tenant.set("acme")


@task
def context() -> list[object]:
    """Describe the context."""
    return [
        translation.get_language(),
        timezone.get_current_timezone_name(),
        decimal.getcontext().prec,
        tenant.get(),
        [id(caches[alias]) for alias in caches],
        [id(task_backends[alias]) for alias in task_backends],
    ]


@pytest.mark.parametrize("kind", ["pool", "processes"])
def test_an_attempt_has_a_context_of_its_own_but_shares_caches(request, kind):
    pool = request.getfixturevalue(kind)
    before = run(pool, context)
    run(pool, changes_context)
    assert run(pool, context) == before


@task
async def changes_context_later() -> None:
    """Do the same in a coroutine."""
    changes_context.call()


@task
async def context_later() -> list[object]:
    """Describe the context of a coroutine."""
    return context.call()[:4]


def test_a_coroutine_has_a_context_of_its_own(coroutines):
    before = run(coroutines, context_later)
    run(coroutines, changes_context_later)
    assert run(coroutines, context_later) == before


# -- processes ------------------------------------------------------------------------------------------


@task
def changes_process(folder: str) -> None:
    """Change what a process has once."""
    os.chdir(folder)
    os.umask(0)
    for number in (signal.SIGUSR1, signal.SIGUSR2, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
    signal.alarm(1)


@task
def process() -> list[object]:
    """Describe the process."""
    umask = os.umask(0)
    os.umask(umask)
    handlers = [getattr(signal.getsignal(number), "__name__", "") for number in (10, 12, 15)]
    return [os.getpid(), str(Path.cwd()), umask, handlers, len(signal.pthread_sigmask(0, [])), signal.alarm(0)]


def test_a_process_is_set_right_after_each_attempt(processes, tmp_path):
    before = run(processes, process)
    run(processes, changes_process, str(tmp_path))
    assert run(processes, process) == before


@task
def reads() -> str:
    """Read what nobody types."""
    return os.read(0, 10).decode()


def test_a_process_has_no_standard_input(processes):
    assert run(processes, reads) == ""


@task
def forks() -> int:
    """Fork a process that returns from the function, too; return its exit code in the parent."""
    pid = os.fork()
    return pid and os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


@pytest.mark.parametrize("kind", ["pool", "processes"])
def test_a_forked_process_ends_with_the_attempt(request, kind):
    pool = request.getfixturevalue(kind)
    assert run(pool, forks) == 1
    assert run(pool, context)
