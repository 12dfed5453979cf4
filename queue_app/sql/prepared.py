"""Run statements of the hot path, prepared, on the driver's connection without a cursor; read any time.

A cursor of psycopg chooses a dumper for each parameter, checks whether the statement is prepared, and chooses a loader
for each column. For a short statement, that takes longer than sending it and waiting for the reply. Here parameters are
plain values of a few types, written as PostgreSQL's text, and statements are recognised by their text.

``run`` raises ``Declined`` for everything else, and the caller then uses a cursor: for a statement that is new on this
connection, a value of another type, a transaction that has to be begun first, an unexpected driver. It also declines if
the project lets the driver prepare statements (``prepare_threshold``): after a rollback the driver makes the server
forget all prepared statements, including those of this module.
"""

from __future__ import annotations

import secrets
import uuid
import weakref
from collections.abc import Callable, Generator, Sequence
from datetime import UTC, datetime
from functools import cache
from typing import Any, Final

import psycopg
from django.db.backends.base.base import BaseDatabaseWrapper
from psycopg import DataError, abc, errors, pq
from psycopg.adapt import AdaptersMap, Loader, Transformer
from psycopg.pq import Format

from queue_app import conf

try:  # psycopg's cursors use these; a version without them gets cursors
    from psycopg.generators import execute as _execute, fetch_many as _fetch_many
except ImportError:  # pragma: no cover
    _execute = _fetch_many = None

type Statement = tuple[str, Sequence[Any]]
type Row = tuple[Any, ...]

#: Number of runs on a connection after which a statement is prepared.
PREPARE_AFTER: Final = 5
#: Errors of a server that has forgotten the statement, or whose tables have changed since.
_STALE: Final = (errors.InvalidSqlStatementName, errors.FeatureNotSupported)
TYPE: Final = "timestamptz"


class Declined(Exception):
    """Nothing was run; the caller has to use a cursor."""


class _Known:
    """The prepared statements of one connection."""

    __slots__ = ("names", "transformer", "uses")

    def __init__(self) -> None:
        self.names: dict[str, bytes] = {}
        self.uses: dict[str, int] = {}
        self.transformer: abc.Transformer | None = None  # made with the first of them


class _Context:
    """The loaders of a connection: those of its cursors, except for times.

    It must not refer to the connection, which would then stay open for ever. Under ASGI, a connection
    closes when the thread that Django made for a request is forgotten.
    """

    connection = None

    def __init__(self, raw: psycopg.Connection[Any]) -> None:
        self.adapters = AdaptersMap(raw.adapters)
        self.adapters.register_loader(TYPE, _Time)


class _Time(Loader):
    """Loader of times in PostgreSQL's format, several times faster than Django and psycopg together."""

    def load(self, data: Any) -> datetime:
        return datetime.fromisoformat(str(data, "ascii"))


_known: weakref.WeakKeyDictionary[psycopg.Connection[Any], _Known] = weakref.WeakKeyDictionary()


def run(raw: psycopg.Connection[Any], statements: Sequence[Statement], answer: int = -1) -> list[Row]:
    """Run statements in one round trip and, outside a transaction, as one; return the rows of one, usually the last.

    Each has a snapshot of its own under READ COMMITTED, as if it had been sent alone. Raises
    ``Declined`` before anything is sent, and psycopg's errors.
    """
    if _execute is None or raw.prepare_threshold is not None:
        raise Declined
    pgconn = raw.pgconn
    status = pgconn.transaction_status
    is_idle = status == pq.TransactionStatus.IDLE
    if pgconn.pipeline_status or not ((is_idle and raw.autocommit) or status == pq.TransactionStatus.INTRANS):
        raise Declined
    if not _has_plain_formats(pgconn):
        raise Declined
    known = _known.get(raw)
    if known is None:
        known = _known[raw] = _Known()
    values = [_texts(params) for _sql, params in statements]
    with raw.lock:
        try:
            names = [known.names[sql] for sql, _params in statements]
        except KeyError:
            _prepare(raw, known, statements)
            names = [known.names[sql] for sql, _params in statements]
        if len(statements) == 1:
            pgconn.send_query_prepared(names[0], values[0])
            results = raw.wait(_execute(pgconn))
        else:
            results = _pipelined(raw, names, values)
        if results[-1].status in (pq.ExecStatus.TUPLES_OK, pq.ExecStatus.COMMAND_OK):
            transformer = known.transformer = known.transformer or Transformer(_Context(raw))
            transformer.set_pgresult(results[answer])
            return transformer.load_rows(0, results[answer].ntuples, tuple)
    error = errors.error_from_result(next(result for result in results if result.status == pq.ExecStatus.FATAL_ERROR))
    if isinstance(error, _STALE):
        del _known[raw]
        if is_idle:
            raise Declined
    raise error


def _has_plain_formats(pgconn: pq.abc.PGconn) -> bool:
    """Return whether texts are UTF-8 and times are ISO 8601, as they are by default."""
    style = pgconn.parameter_status(b"DateStyle")
    return style is not None and style.startswith(b"ISO") and pgconn.parameter_status(b"client_encoding") == b"UTF8"


def _prepare(raw: psycopg.Connection[Any], known: _Known, statements: Sequence[Statement]) -> None:
    """Prepare the new statements; raise ``Declined`` until each has run often enough."""
    fresh = [sql for sql, _params in statements if sql not in known.names]
    for sql in fresh:
        known.uses[sql] = known.uses.get(sql, 0) + 1
    if any(known.uses[sql] <= PREPARE_AFTER for sql in fresh):
        raise Declined
    for sql in fresh:
        # Random, because a pooler may give several processes the same server: the name of one process must not run the
        # statement of another.
        name = b"taskqueue_" + secrets.token_hex(12).encode()
        raw.pgconn.send_prepare(name, _numbered(sql))
        (result,) = raw.wait(_execute(raw.pgconn))
        if result.status != pq.ExecStatus.COMMAND_OK:
            raise errors.error_from_result(result)
        known.names[sql] = name


def _numbered(sql: str) -> bytes:
    """Return a statement with ``$1``, ``$2`` in the places of its ``%s``."""
    first, *parts = sql.split("%s")
    return "".join([first, *(f"${number}{part}" for number, part in enumerate(parts, 1))]).encode()


def _pipelined(
    raw: psycopg.Connection[Any], names: Sequence[bytes], values: Sequence[list[bytes | None]]
) -> list[pq.abc.PGresult]:
    pgconn = raw.pgconn
    pgconn.enter_pipeline_mode()
    try:
        for name, params in zip(names, values, strict=True):
            pgconn.send_query_prepared(name, params)
        pgconn.pipeline_sync()
        return raw.wait(_answers(pgconn, len(names)))
    finally:
        try:
            pgconn.exit_pipeline_mode()
        except psycopg.Error:  # the connection broke, or has unread replies
            raw.close()


def _answers(pgconn: pq.abc.PGconn, count: int) -> Generator[Any, Any, list[pq.abc.PGresult]]:
    """Send the statements and yield while waiting; return their replies, without the reply to the final sync."""
    results: list[pq.abc.PGresult] = yield from _execute(pgconn)
    for _ in range(count - 1):
        results += yield from _fetch_many(pgconn)
    yield from _fetch_many(pgconn)
    return results


def _of_str(value: str) -> bytes:
    if "\x00" in value:
        raise Declined  # the text would end there; a cursor refuses it
    return value.encode()


def _of_datetime(value: datetime) -> bytes:
    if value.tzinfo is None:
        raise Declined
    return value.isoformat().encode()


_TEXTS: Final[dict[type, Callable[[Any], bytes]]] = {
    str: _of_str,
    int: lambda value: b"%d" % value,
    float: lambda value: repr(value).encode(),
    bool: lambda value: b"t" if value else b"f",
    uuid.UUID: lambda value: b"%032x" % value.int,
    datetime: _of_datetime,
    list: lambda values: b"{" + b",".join([_element(value) for value in values]) + b"}",
}


def _texts(params: Sequence[Any]) -> list[bytes | None]:
    """Return parameters in PostgreSQL's text format."""
    try:
        return [None if value is None else _TEXTS[type(value)](value) for value in params]
    except KeyError:
        raise Declined from None


def _element(value: Any) -> bytes:
    """Return an element of an array; texts are quoted."""
    if value is None:
        return b"NULL"
    text = _TEXTS[type(value)](value)
    if type(value) is str:
        return b'"' + text.replace(b"\\", b"\\\\").replace(b'"', b'\\"') + b'"'
    return text


class Bounded:
    """Marks loaders that know the ends of the calendar."""


def add_loader(connection: BaseDatabaseWrapper, **_: Any) -> None:
    """Add the loader to a new connection: it reads ``infinity`` and the like as the ends of Python's calendar.

    The queue never writes them. Without the loader, one such value, set by hand, makes every list with its row fail.
    """
    if connection.alias != conf.load()[0].database_alias or connection.vendor != "postgresql":
        return
    adapters = connection.connection.adapters
    base: Any = adapters.get_loader(adapters.types[TYPE].oid, Format.TEXT)
    if not issubclass(base, Bounded):  # a pool gives the same connection again
        adapters.register_loader(TYPE, _bounded(base))


@cache
def _bounded(base: Any) -> Any:
    """Return a loader like Django's, ``base``, which knows the time zone of the connection."""

    class BoundedLoader(Bounded, base):  # type: ignore[misc]
        def load(self, data: Any) -> Any:
            try:
                return super().load(data)
            except DataError:
                text = bytes(data)
                is_past = text.startswith(b"-") or text.endswith(b"BC")
                return datetime.min.replace(tzinfo=UTC) if is_past else datetime.max.replace(tzinfo=UTC)

    return BoundedLoader
