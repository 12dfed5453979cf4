"""Statements of the hot path, prepared and run on the driver's connection without a cursor.

A cursor of psycopg asks of each parameter which of its dumpers fits, of the statement whether it is
prepared, and of each column how it is read. For one short statement that takes longer than to
send it and to wait. Here the parameters are plain values of a few types, written as
PostgreSQL's text, and a statement is known by its text.

``run`` takes what is certain and declines the rest, which the caller then gives to a cursor: a statement
that has not been run often on this connection, a value of another type, a transaction that
has yet to be begun, a driver that works in another way. So there is nothing that only this way
can do. A driver that prepares by itself, because the project told it to (``prepare_threshold``),
is left to do it: after a rollback it has the server forget whatever is prepared, ours too.
"""

from __future__ import annotations

import itertools
import uuid
import weakref
from collections.abc import Callable, Generator, Sequence
from datetime import datetime
from typing import Any, Final

import psycopg
from psycopg import abc, errors, pq
from psycopg.adapt import AdaptersMap, Loader, Transformer

try:  # what psycopg's own cursors are made of; where a version has it no more, they do the work
    from psycopg.generators import execute as _execute
    from psycopg.generators import fetch_many as _fetch_many
except ImportError:  # pragma: no cover
    _execute = _fetch_many = None

type Statement = tuple[str, Sequence[Any]]
type Row = tuple[Any, ...]

#: A statement is prepared once it has been run so often on a connection.
PREPARE_AFTER: Final = 5
#: A server that does not know the statement (it was told to forget all), or whose tables have changed under it.
_STALE: Final = (errors.InvalidSqlStatementName, errors.FeatureNotSupported)
_NUMBERS: Final = itertools.count(1)


class Declined(Exception):
    """Nothing was run: a cursor has to do it."""


class _Known:
    """What is prepared on one connection."""

    __slots__ = ("names", "transformer", "uses")

    def __init__(self) -> None:
        self.names: dict[str, bytes] = {}
        self.uses: dict[str, int] = {}
        self.transformer: abc.Transformer | None = None  # made once something is prepared: many connections are short


class _Context:
    """How the values of a connection are read: as its cursors do, times apart.

    It must not know the connection. What is remembered of one would keep it open for ever, where it should
    close as it is forgotten: with the thread that Django gives to a request under ASGI.
    """

    connection = None

    def __init__(self, raw: psycopg.Connection[Any]) -> None:
        self.adapters = AdaptersMap(raw.adapters)
        self.adapters.register_loader("timestamptz", _Time)


class _Time(Loader):
    """Reads a time as PostgreSQL writes it; several times faster than what Django and psycopg do together."""

    def load(self, data: Any) -> datetime:
        return datetime.fromisoformat(str(data, "ascii"))


_known: weakref.WeakKeyDictionary[psycopg.Connection[Any], _Known] = weakref.WeakKeyDictionary()


def run(raw: psycopg.Connection[Any], statements: Sequence[Statement]) -> list[Row]:
    """Run statements in one round trip and, outside a transaction, as one; return the rows of the last.

    Each has a snapshot of its own under READ COMMITTED, as if it had been sent alone. Raises
    ``Declined`` before anything was sent, and psycopg's errors.
    """
    if _execute is None or raw.prepare_threshold is not None:
        raise Declined
    pgconn = raw.pgconn
    status = pgconn.transaction_status
    is_idle = status == pq.TransactionStatus.IDLE
    if pgconn.pipeline_status or not ((is_idle and raw.autocommit) or status == pq.TransactionStatus.INTRANS):
        raise Declined
    if not _speaks_plainly(pgconn):
        raise Declined
    known = _known.get(raw)
    if known is None:
        known = _known[raw] = _Known()
    values = [_texts(params) for _sql, params in statements]
    with raw.lock:
        if any(sql not in known.names for sql, _params in statements):
            _prepare(raw, known, statements)
        names = [known.names[sql] for sql, _params in statements]
        if len(statements) == 1:
            pgconn.send_query_prepared(names[0], values[0])
            results = raw.wait(_execute(pgconn))
        else:
            results = _pipelined(raw, names, values)
        last = results[-1]
        if last.status in (pq.ExecStatus.TUPLES_OK, pq.ExecStatus.COMMAND_OK):
            transformer = known.transformer = known.transformer or Transformer(_Context(raw))
            transformer.set_pgresult(last)
            return transformer.load_rows(0, last.ntuples, tuple)
    error = errors.error_from_result(next(result for result in results if result.status == pq.ExecStatus.FATAL_ERROR))
    if isinstance(error, _STALE):
        del _known[raw]
        if is_idle:
            raise Declined
    raise error


def _speaks_plainly(pgconn: pq.abc.PGconn) -> bool:
    """Whether texts are UTF-8 and times are written as ISO 8601, as long as nobody sets it otherwise."""
    style = pgconn.parameter_status(b"DateStyle")
    return style is not None and style.startswith(b"ISO") and pgconn.parameter_status(b"client_encoding") == b"UTF8"


def _prepare(raw: psycopg.Connection[Any], known: _Known, statements: Sequence[Statement]) -> None:
    """Prepare what is not yet; raise ``Declined`` while it has not been run often."""
    fresh = [sql for sql, _params in statements if sql not in known.names]
    for sql in fresh:
        known.uses[sql] = known.uses.get(sql, 0) + 1
    if any(known.uses[sql] <= PREPARE_AFTER for sql in fresh):
        raise Declined
    for sql in fresh:
        name = b"taskqueue_%d" % next(_NUMBERS)
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
        except psycopg.Error:  # the connection broke, or has answers that nobody will read
            raw.close()


def _answers(pgconn: pq.abc.PGconn, count: int) -> Generator[Any, Any, list[pq.abc.PGresult]]:
    """Send what is to be sent and yield while there is to wait; return the answers, without that to the end of all."""
    results: list[pq.abc.PGresult] = yield from _execute(pgconn)
    for _ in range(count - 1):
        results += yield from _fetch_many(pgconn)
    yield from _fetch_many(pgconn)
    return results


def _of_str(value: str) -> bytes:
    if "\x00" in value:
        raise Declined  # it would end there; a cursor refuses it
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
    uuid.UUID: lambda value: str(value).encode(),
    datetime: _of_datetime,
    list: lambda values: b"{" + b",".join([_element(value) for value in values]) + b"}",
}


def _texts(params: Sequence[Any]) -> list[bytes | None]:
    """Return parameters as PostgreSQL's texts of them."""
    try:
        return [None if value is None else _TEXTS[type(value)](value) for value in params]
    except KeyError:
        raise Declined from None


def _element(value: Any) -> bytes:
    """Return an element of an array; one of text is quoted."""
    if value is None:
        return b"NULL"
    text = _TEXTS[type(value)](value)
    if type(value) is str:
        return b'"' + text.replace(b"\\", b"\\\\").replace(b'"', b'\\"') + b'"'
    return text
