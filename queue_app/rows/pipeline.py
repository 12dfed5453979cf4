"""Prepared statements in one write to the socket.

psycopg's own pipeline sends each statement as it comes, then the end of the pipeline, then a
request for the answers: four writes and as many turns of waiting for what is here one of
each, and more than half of the processor time of a short statement. What it prepares it
keeps to itself, so these statements have names of their own.
"""

from __future__ import annotations

import weakref
from collections.abc import Generator, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import count
from typing import Any, Final

import psycopg
from psycopg import abc, pq
from psycopg.adapt import PyFormat, Transformer
from psycopg.errors import InvalidSqlStatementName, error_from_result
from psycopg.pq.abc import PGconn, PGresult
from psycopg.waiting import Ready, Wait

#: Of statements with parameters of other types each is one more; what comes beyond so many is parsed each time.
MAX_PREPARED: Final = 100

Statement = tuple[str, Sequence[Any]]
Rows = list[tuple[Any, ...]]
Key = tuple[str, tuple[int, ...]]  # a statement and the types of its parameters


@dataclass(slots=True)
class _Prepared:
    names: dict[Key, bytes] = field(default_factory=dict)
    #: Names are not used again: one whose statement was refused may be known to the server or not.
    numbers: count[int] = field(default_factory=count)


_prepared: weakref.WeakKeyDictionary[psycopg.Connection[Any], _Prepared] = weakref.WeakKeyDictionary()


def fetch_last_prepared(raw: psycopg.Connection[Any], statements: Sequence[Statement]) -> Rows:
    """Run statements in one round trip and return the rows of the last one; each is prepared at its first use.

    Outside a transaction they are one. Raises the first error of the server as psycopg does;
    a connection whose answers were not read to their end is closed.
    """
    known = _prepared.setdefault(raw, _Prepared())
    try:
        return _run(raw, statements, known)
    except InvalidSqlStatementName:  # somebody made the server forget: DEALLOCATE, DISCARD
        known.names.clear()
        if raw.info.transaction_status != pq.TransactionStatus.IDLE:
            raise
    return _run(raw, statements, known)


def _run(raw: psycopg.Connection[Any], statements: Sequence[Statement], known: _Prepared) -> Rows:
    transformer = Transformer(raw)
    fresh: dict[Key, bytes] = {}
    begin = _begin(raw)
    with raw.lock:
        connection = raw.pgconn
        try:
            connection.enter_pipeline_mode()
            if begin:
                connection.send_query_params(begin, None)
            for statement in statements:
                _send(connection, transformer, statement, known, fresh)
            connection.pipeline_sync()
            answers = raw.wait(_answers(connection))
            connection.exit_pipeline_mode()
        except BaseException:
            raw.close()
            raise
    for answer in answers:
        if answer.status == pq.ExecStatus.FATAL_ERROR:
            raise error_from_result(answer, encoding=raw.info.encoding)
    known.names |= fresh
    transformer.set_pgresult(answers[-1])
    return transformer.load_rows(0, answers[-1].ntuples, tuple) if answers[-1].nfields else []


def _begin(raw: psycopg.Connection[Any]) -> bytes:
    """Return what begins the transaction that the caller is in and of which these are the first statements.

    Outside of autocommit psycopg begins one before whatever its cursors send first; in its own words where it is to
    be of another kind than usual.
    """
    if raw.autocommit or raw.pgconn.transaction_status != pq.TransactionStatus.IDLE:
        return b""
    if (raw.isolation_level, raw.read_only, raw.deferrable) == (None, None, None):
        return b"BEGIN"
    raw.execute("SELECT")
    return b""


def _send(
    connection: PGconn, transformer: abc.Transformer, statement: Statement, known: _Prepared, fresh: dict[Key, bytes]
) -> None:
    """Put a statement into the buffer of the connection, behind its preparation where it has none."""
    sql, given = statement
    parameters = transformer.dump_sequence(given, [PyFormat.AUTO] * len(given)) if given else ()
    types, formats = transformer.types or (), transformer.formats
    key = (sql, types if given else ())
    name = known.names.get(key) or fresh.get(key)
    if name is None:
        if len(known.names) >= MAX_PREPARED:
            connection.send_query_params(_numbered(sql), parameters, param_types=types, param_formats=formats)
            return
        name = fresh[key] = b"taskqueue_%d" % next(known.numbers)
        connection.send_prepare(name, _numbered(sql), param_types=types)
    connection.send_query_prepared(name, parameters, param_formats=formats)


def _answers(connection: PGconn) -> Generator[Wait, Ready | int, list[PGresult]]:
    """Send what has gathered and collect what is answered, up to the end of the pipeline; for ``Connection.wait``."""
    while connection.flush():
        if (yield Wait.RW) & Ready.R:  # else both sides might wait for the other to read
            connection.consume_input()
    found: list[PGresult] = []
    while True:
        while connection.is_busy():
            yield Wait.R
            connection.consume_input()
        answer = connection.get_result()
        if answer is None:  # the end of one statement's answers
            continue
        if answer.status == pq.ExecStatus.PIPELINE_SYNC:
            return found
        found.append(answer)


@cache
def _numbered(sql: str) -> bytes:
    """Return a statement with ``%s`` as PostgreSQL wants its parameters: numbered."""
    first, *others = sql.split("%s")
    return (first + "".join(f"${number}{part}" for number, part in enumerate(others, 1))).encode()
