"""Run SQL on the database that holds the tasks.

``docs/explanation/database-and-redis-access.md`` says when to use which function.

Statements write ``clock_timestamp()``, the current time, but compare columns with ``statement_timestamp()``.
``clock_timestamp()`` can change from row to row, so PostgreSQL cannot search an index for it.
"""

from __future__ import annotations

import logging
import re
import select
import time
import uuid
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar
from datetime import datetime
from functools import cache, lru_cache
from types import MappingProxyType
from typing import Any, cast

import psycopg
from django.db import OperationalError, connections, transaction
from django.db.backends.base.base import BaseDatabaseWrapper
from psycopg.errors import DeadlockDetected

from queue_app import conf
from queue_app.sql.prepared import Declined, Row, Statement, run

type Parameters = Sequence[Any] | Mapping[str, Any]

MINIMUM_POSTGRESQL = (15, 0)
#: Advisory lock that every claim shares until it commits. A rebuild takes it exclusively to raise the generation, so
#: no claim of the old generation can commit after the rebuild has read the rows.
GENERATION_LOCK = 0x7461736B_71000001
#: First half of the keys of the advisory locks of workflows; the other half is a hash of the workflow.
WORKFLOW_LOCKS = 0x7461736B
#: Statement that shares the locks of ``flows``, a relation with the column ``id``, in the order of their keys.
SHARE_WORKFLOWS = f"""
SELECT pg_advisory_xact_lock_shared({WORKFLOW_LOCKS}, key)
FROM (SELECT DISTINCT hashtext(id::text) AS key FROM {{flows}} ORDER BY key OFFSET 0) AS keys
"""
#: Time after which PostgreSQL ends a bounded transaction whose process sends nothing.
FROZEN_SECONDS = 10.0
#: Maximum number of hooks that wait until a caller turns autocommit on again.
MAX_MANUAL_HOOKS = 1000
#: Condition that new transactions on this server cannot write: it is a standby, or was made read-only for a change.
IS_READ_ONLY = "(pg_is_in_recovery() OR current_setting('default_transaction_read_only')::bool)"
#: Columns of a SELECT that make the rest of its transaction look rows up by index, even if PostgreSQL's statistics say
#: that the tables are small. Such a plan suits all parameters. With the usual ``plan_cache_mode``, PostgreSQL would
#: often plan a prepared statement for its parameters at each run, which takes longer than running it. Up to PostgreSQL
#: 17, each scan of a small table that has no index for it costs 10^10 in such a plan. JIT would compile the plan for
#: that cost, at each run, which takes half a second.
BY_KEYS_ONLY = (
    "set_config('enable_seqscan', 'off', true), set_config('enable_hashjoin', 'off', true),"
    " set_config('enable_mergejoin', 'off', true), set_config('plan_cache_mode', 'force_generic_plan', true),"
    " set_config('jit', 'off', true)"
)

#: Precedes a statement that reads many rows: compiling it takes longer than it saves.
WITHOUT_JIT = ("SELECT set_config('jit', 'off', true)", ())
#: Precedes a prepared statement, so that a plan made while the tables were empty suits full ones.
LOOK_UP = (f"SELECT {BY_KEYS_ONLY}", ())
#: The same for statements that join batches: nested loops, which suit few rows, would compare each row with each.
BATCH_BY_KEYS = BY_KEYS_ONLY.replace("enable_hashjoin", "enable_nestloop")
LOOK_UP_BATCH = (f"SELECT {BATCH_BY_KEYS}", ())

#: {alias: ``depth``} of a test that runs an attempt in its own transactions.
around: ContextVar[Mapping[str, int]] = ContextVar("around", default=MappingProxyType({}))

_log = logging.getLogger("taskqueue")
#: A setting that a statement changes for the rest of its transaction.
_LOCAL_SETTING = re.compile(r"set_config\('([a-z_]+)', [^()]*, true\)")


def alias() -> str:
    """Return the alias of the database in ``DATABASES``."""
    return conf.get().database_alias


def connection() -> BaseDatabaseWrapper:
    """Return this thread's connection to the database."""
    return connections[alias()]


@contextmanager
def atomic() -> Iterator[None]:
    """Run a block in one transaction."""
    with transaction.atomic(using=alias()):
        yield


def depth(database: BaseDatabaseWrapper) -> int:
    """Return the number of ``atomic`` blocks that are open."""
    return len(database.atomic_blocks)


def is_around(database: BaseDatabaseWrapper) -> bool:
    """Return whether the open transaction is that of a test which runs tasks inside of it, and of nobody else."""
    return 0 < depth(database) == around.get().get(database.alias)


def is_in_transaction() -> bool:
    """Return whether the caller has opened a transaction, or switched autocommit off."""
    database = connection()
    if database.in_atomic_block:
        return not is_around(database)
    return not database.get_autocommit()


def call_on_commit(hook: Callable[[], object], join: Callable[[Any], bool] | None = None) -> None:
    """Call ``hook`` once the caller's transaction has committed; at once when there is none.

    ``join`` gets the last hook of the transaction, unless a savepoint that could be rolled back alone lies in between.
    If it returns true, that hook does the work of this one.

    After ``set_autocommit(False)`` Django accepts hooks only inside an atomic block, and calls them when the caller
    turns autocommit on again after its commit. A caller that never turns it on would collect hooks without end, so
    their number is limited; the reconciler does what the others would have done.
    """
    database = connection()
    if database.autocommit and not database.in_atomic_block:  # known without asking the driver
        try:
            hook()
        except Exception:  # noqa: BLE001 - logged, as Django logs it: the rows stay stored
            _log.exception("a hook failed after the commit")
    elif database.in_atomic_block or database.get_autocommit():
        if join is not None and database.run_on_commit:
            last: tuple[Any, ...] = database.run_on_commit[-1]
            if last[0] == set(database.savepoint_ids) and join(last[1]):
                return
        database.on_commit(hook, robust=True)
    elif len(database.run_on_commit) < MAX_MANUAL_HOOKS:
        with transaction.atomic(using=alias(), savepoint=False):
            database.on_commit(hook, robust=True)


def once_more_after_deadlock[T](action: Callable[[], T]) -> T:
    """Return the result of ``action``, a transaction; repeat it once if PostgreSQL ended it to resolve a deadlock.

    Inside the caller's transaction the error is raised, because that transaction is lost.
    """
    is_own = not is_in_transaction()
    try:
        return action()
    except OperationalError as error:
        if not (is_own and isinstance(error.__cause__, DeadlockDetected)):
            raise
    return action()


def require_answer(seconds: float) -> None:
    """Raise ``OperationalError`` unless PostgreSQL answers within ``seconds``, or accepts a connection within two.

    A server that is frozen accepts what is sent; libpq would wait for its answer until the connection breaks.
    """
    database = connection()
    raw = database.connection
    answers = None if raw is None or raw.closed else _answers(raw, seconds)
    if answers is None and not database.in_atomic_block:  # a connection that broke is made again
        database.close()
        parameters = database.get_connection_params
        database.get_connection_params = lambda: {"connect_timeout": 2} | parameters()  # type: ignore[method-assign]
        try:
            database.ensure_connection()
        finally:
            del database.get_connection_params
    elif answers is False:
        database.close()
        raise OperationalError(f"PostgreSQL has not answered within {seconds:g} s.")


def _answers(raw: psycopg.Connection[Any], seconds: float) -> bool | None:
    """Return whether the server answers in time; ``None`` if the connection is broken."""
    until, line, poll = time.monotonic() + seconds, raw.pgconn, select.poll()
    poll.register(raw.fileno(), select.POLLIN)
    try:
        line.send_query(b"SELECT 1")
        while line.is_busy():
            if not poll.poll(max(0.0, 1000 * (until - time.monotonic()))):
                return False
            line.consume_input()
        while line.get_result():
            pass
    except psycopg.OperationalError:
        return None
    return True


def execute(sql: str, params: Parameters = ()) -> int:
    """Run one statement and return the number of rows it changed."""
    with connection().cursor() as cursor:
        cursor.execute(sql, params)
        return int(cursor.rowcount)


def fetch_all(sql: str, params: Parameters = ()) -> list[Row]:
    """Run one statement and return its rows, none for a statement that returns none."""
    with connection().cursor() as cursor:
        cursor.execute(sql, params)
        has_rows = cursor.description is not None  # ``SELECT FROM …`` has rows, and no columns
        return cast("list[Row]", cursor.fetchall() if has_rows else [])


def fetch_column(sql: str, params: Parameters = ()) -> list[Any]:
    """Run one statement and return the first column of its rows."""
    return [row[0] for row in fetch_all(sql, params)]


def columns_of(rows: Collection[Sequence[Any]], number: int) -> list[list[Any]]:
    """Return rows as ``number`` columns, as ``unnest`` takes them."""
    return [list(column) for column in zip(*rows, strict=True)] if rows else [[] for _ in range(number)]


def fetch_value(sql: str, params: Parameters = ()) -> Any:
    """Run one statement and return the first column of its first row; ``None`` without a row."""
    rows = fetch_all(sql, params)
    return rows[0][0] if rows else None


def is_read_only() -> bool:
    """Return whether new transactions on this server cannot write, like on a standby."""
    return bool(fetch_value(f"SELECT {IS_READ_ONLY}"))


def bound_transaction() -> None:
    """Let PostgreSQL end this transaction if its process sends nothing for ``FROZEN_SECONDS``.

    A frozen process would keep its locks, and others would wait for them.
    """
    fetch_all("SELECT set_config('idle_in_transaction_session_timeout', %s, true)", [f"{FROZEN_SECONDS * 1000:.0f}"])


def clock() -> datetime:
    """Return the time by PostgreSQL's clock, which all stored times follow."""
    now: datetime = fetch_value("SELECT clock_timestamp()")
    return now


def fetch_together(*statements: Statement) -> list[Row]:
    """Run statements in one round trip and return the rows of the last one.

    They are one transaction, or part of the caller's, whose settings they leave as they were. Under READ COMMITTED each
    has its own snapshot, as if it had been sent alone. They are sent as one text, which needs a cursor that fills in
    the parameters itself, even if the project sets ``server_side_binding``. Query logging gets them one by one.
    """
    database = connection()
    if len(statements) == 1:
        return fetch_all(*statements[0])
    statements, answer = _as_it_was(statements)
    if database.queries_logged:
        with atomic():
            return [fetch_all(sql, params) for sql, params in statements][answer]
    texts, params = zip(*statements, strict=True)
    with database.wrap_database_errors, psycopg.ClientCursor(_driver(database)) as cursor:
        cursor.execute(";".join(texts), [param for some in params for param in some])
        for _ in range(answer):
            cursor.nextset()
        return cursor.fetchall()


def fetch_prepared(*statements: Statement) -> list[Row]:
    """Run statements of the hot path as ``fetch_together`` does, but prepared.

    Django's cursors send text that PostgreSQL parses and plans each time, which takes as long as running
    a short statement. Behind a pooler that changes servers between transactions, a prepared statement may
    be on another server; projects with such a pooler set ``DISABLE_SERVER_SIDE_CURSORS``.
    """
    database = connection()
    is_single = len(statements) == 1
    is_pooled = database.settings_dict.get("DISABLE_SERVER_SIDE_CURSORS")
    if is_pooled or database.queries_logged or not (is_single or _can_pipeline()):
        return fetch_together(*statements)
    statements, answer = _as_it_was(statements)
    with database.wrap_database_errors:
        raw = _driver(database)
        try:
            return run(raw, statements, answer)
        except Declined:
            pass
        # The rows are fetched after the pipeline, because leaving it sends the statements and commits them.
        with nullcontext() if is_single else raw.pipeline():
            cursors = [psycopg.Cursor(raw).execute(sql, params) for sql, params in statements]
        return cursors[answer].fetchall()


def _as_it_was(statements: tuple[Statement, ...]) -> tuple[tuple[Statement, ...], int]:
    """Return statements that leave the settings of the caller's transaction as they were, and which one answers."""
    database, last = connection(), len(statements) - 1
    if not last or (database.autocommit and not database.in_atomic_block):  # known without asking the driver
        return statements, last
    keep, restore = _around(tuple(sql for sql, _ in statements))
    return ((keep, *statements, restore), last + 1) if keep[0] else (statements, last)


@lru_cache
def _around(texts: tuple[str, ...]) -> tuple[Statement, Statement]:
    """Return the statement that keeps the settings that others change, and the one that restores them."""
    names = sorted({name for text in texts for name in _LOCAL_SETTING.findall(text)})
    keep = ", ".join(f"set_config('taskqueue.was_{name}', current_setting('{name}'), true)" for name in names)
    restore = ", ".join(f"set_config('{name}', current_setting('taskqueue.was_{name}'), true)" for name in names)
    return (keep and f"SELECT {keep}", ()), (f"SELECT {restore}", ())


def fetch_locked(ids: Sequence[uuid.UUID], sql: str, params: Sequence[Any]) -> list[Row]:
    """Lock tasks, run the statement that changes them, and return its rows.

    A deadlock is still possible with a statement that locks in no order, as the claim does.
    """
    return once_more_after_deadlock(lambda: fetch_prepared(lock_rows(ids), (sql, params)))


def lock_rows(ids: Sequence[uuid.UUID]) -> Statement:
    """Return the statement that locks tasks in the order of their ids.

    It goes before a statement that changes several tasks, in the same transaction. Statements that lock in this order
    do not deadlock with one another. The second statement's snapshot is younger than the locks, so it sees each row as
    it is.
    """
    return "SELECT FROM queue_app_task WHERE id = ANY(%s) ORDER BY id FOR UPDATE", [list(ids)]


@cache
def _can_pipeline() -> bool:
    """Return whether the installed libpq supports pipelines; the check itself is slow."""
    return psycopg.Pipeline.is_supported()


def _driver(database: BaseDatabaseWrapper) -> psycopg.Connection[Any]:
    """Return the connection below Django's.

    With ``CONN_HEALTH_CHECKS``, Django checks a connection at its first use in a request, which costs a round trip.
    A connection on which nothing has arrived is healthy, because a server that ends a connection says so or closes it.
    """
    if database.settings_dict["CONN_HEALTH_CHECKS"] and has_news(database.connection):
        database.close_if_health_check_failed()
    database.ensure_connection()
    database.validate_no_broken_transaction()
    raw: psycopg.Connection[Any] = database.connection
    return raw


def has_news(raw: psycopg.Connection[Any] | None) -> bool:
    """Return whether the connection is closed, or the server has sent something unasked."""
    if raw is None:
        return False
    if raw.closed:
        return True
    poll = select.poll()
    poll.register(raw.fileno(), select.POLLIN)
    return bool(poll.poll(0))
