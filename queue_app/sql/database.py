"""The database that holds the rows.

Statements write ``clock_timestamp()``, the time of the moment, but compare columns with
``statement_timestamp()``: the first may change from row to row, so that no index can be
searched for it, and a look for the tasks that are due would read all that are not.
"""

from __future__ import annotations

import select
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any, cast

import psycopg
from django.db import connections, transaction
from django.db.backends.base.base import BaseDatabaseWrapper

from queue_app import conf
from queue_app.sql import prepared

MINIMUM_POSTGRESQL = (14, 0)
#: Shared by every claim until it commits, taken alone by a rebuild when it raises the
#: generation: so no claim of the old generation can commit after the rebuild has read.
GENERATION_LOCK = 0x7461736B_71000001
#: Columns of a SELECT that has the rest of its transaction look rows up one by one, whatever the planner believes of
#: the sizes of tables.
BY_KEYS_ONLY = (
    "set_config('enable_seqscan', 'off', true), set_config('enable_hashjoin', 'off', true),"
    " set_config('enable_mergejoin', 'off', true)"
)


def alias() -> str:
    """Return the alias of the database in ``DATABASES``."""
    return conf.get().database_alias


def connection() -> BaseDatabaseWrapper:
    """Return this thread's connection to the rows."""
    return connections[alias()]


@contextmanager
def atomic() -> Iterator[None]:
    """Run a block in one transaction."""
    with transaction.atomic(using=alias()):
        yield


def fetch_all(sql: str, params: Sequence[Any] | Mapping[str, Any] = ()) -> list[tuple[Any, ...]]:
    """Run one statement and return its rows."""
    with connection().cursor() as cursor:
        cursor.execute(sql, params)
        return cast("list[tuple[Any, ...]]", cursor.fetchall())


def execute(sql: str, params: Sequence[Any] | Mapping[str, Any] = ()) -> int:
    """Run one statement and return how many rows it touched."""
    with connection().cursor() as cursor:
        cursor.execute(sql, params)
        return int(cursor.rowcount)


def fetch_prepared(sql: str, params: Sequence[Any]) -> list[tuple[Any, ...]]:
    """Run one statement of the hot path as a prepared one, and return its rows.

    Django's cursors send a statement as text that PostgreSQL parses and plans each time,
    which here costs as much as running it. Not behind a pooler that hands out a server for
    each transaction, where a prepared statement may be on another one: the projects that
    have such a pooler say so with ``DISABLE_SERVER_SIDE_CURSORS``.
    """
    database = connection()
    if not _may_prepare(database):
        return fetch_all(sql, params)
    with database.wrap_database_errors:
        raw = _driver(database)
        try:
            return prepared.run(raw, [(sql, params)])
        except prepared.Declined:
            with psycopg.Cursor(raw) as cursor:
                cursor.execute(sql, params)
                return cursor.fetchall()


def fetch_together(*statements: tuple[str, Sequence[Any]]) -> list[tuple[Any, ...]]:
    """Run prepared statements in one round trip, as one transaction or as part of the caller's; return the last rows.

    Each has a snapshot of its own under READ COMMITTED, as if it had been sent alone. Where
    statements cannot be prepared they go as one text; where queries are logged, one by one.
    """
    database = connection()
    if database.queries_logged:
        with atomic():
            return [fetch_all(sql, params) for sql, params in statements][-1]
    if not (_may_prepare(database) and _can_pipeline()):
        texts, params = zip(*statements, strict=True)
        return fetch_last(";".join(texts), [param for some in params for param in some])
    with database.wrap_database_errors:
        raw = _driver(database)
        try:
            return prepared.run(raw, statements)
        except prepared.Declined:
            pass
        with raw.pipeline():  # left before anything is fetched: it is then that all goes out, and is committed
            cursors = [psycopg.Cursor(raw).execute(sql, params) for sql, params in statements]
        return cursors[-1].fetchall()


def _may_prepare(database: BaseDatabaseWrapper) -> bool:
    return not (database.settings_dict.get("DISABLE_SERVER_SIDE_CURSORS") or database.queries_logged)


@cache
def _can_pipeline() -> bool:
    """Whether the libpq that is installed can; asking it takes longer than one would think."""
    return psycopg.Pipeline.is_supported()


def _driver(database: BaseDatabaseWrapper) -> psycopg.Connection[Any]:
    """Return the connection below Django's.

    Where the project wants connections to be checked at their first use in a request, one on
    which nothing has come since the last answer is good: a server that ends one says so, or
    closes it. Only what has something to say is asked, which costs a round trip.
    """
    if database.settings_dict["CONN_HEALTH_CHECKS"] and _has_news(database.connection):
        database.close_if_health_check_failed()
    database.ensure_connection()
    database.validate_no_broken_transaction()
    return cast("psycopg.Connection[Any]", database.connection)


def _has_news(raw: psycopg.Connection[Any] | None) -> bool:
    """Whether the connection is closed, or the server has sent something that nobody asked for."""
    if raw is None:
        return False
    if raw.closed:
        return True
    poll = select.poll()
    poll.register(raw.fileno(), select.POLLIN)
    return bool(poll.poll(0))


def fetch_last(sql: str, params: Sequence[Any] | Mapping[str, Any]) -> list[tuple[Any, ...]]:
    """Run several statements in one round trip and, outside a transaction, as one; return the last one's rows.

    Only a cursor that fills in the parameters itself can send them so, whatever the project
    chose with ``server_side_binding``.
    """
    database = connection()
    database.ensure_connection()
    database.validate_no_broken_transaction()
    with database.wrap_database_errors, psycopg.ClientCursor(database.connection) as cursor:
        cursor.execute(sql, params)
        while cursor.nextset():
            pass
        return cursor.fetchall()
