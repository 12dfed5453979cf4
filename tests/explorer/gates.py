"""Actors that stop before each message that they send to a server.

psycopg sends through ``Connection.wait`` and redis-py through ``Connection.send_packed_command``, so two patches see
every message of an actor, whatever the code above does. An actor stands for a process: it has a thread, a connection to
PostgreSQL and an ``Index`` of its own. It goes on only when the controller lets it, and the controller says what
happens to the message:

- ``GO``: it is sent, and the answer arrives.
- ``DIE``: the process dies before it is sent. Its connections close, and PostgreSQL rolls its transaction back.
- ``LOSE``: it is sent and carried out, and the connection breaks before the answer arrives.
- ``BREAK``: the connection breaks before it is sent.
- ``CLOCK``: Valkey's clock goes back by an hour, and the message is sent.
"""

from __future__ import annotations

import hashlib
import queue
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import psycopg
import redis
from django.db import connections
from psycopg.pq import TransactionStatus

from queue_app.index import Index, calls, index as index_package, scripts
from queue_app.index.client import connect
from queue_app.sql.database import connection
from queue_app.sql.doctor import database_identity
from tests.support.index_state import client_of
from tests.support.swaps import swapped

GO, DIE, LOSE, BREAK, CLOCK = "go", "die", "lose", "break", "clock"
POSTGRESQL, REDIS = "postgresql", "redis"
#: How many seconds Valkey's clock goes back.
BACK_SECONDS = 3600
#: By how many seconds it went back; outside the prefix of the index.
CLOCK_KEY = "explorer-clock"
# What scripts read instead of TIME: no server lets a client set its clock.
_NOW = (
    f"(function() local t = redis.call('TIME'); t[1] = t[1] - (redis.call('GET', '{CLOCK_KEY}') or 0); return t end)()"
)
_TIME = b"*1\r\n$4\r\nTIME\r\n"
_plain_source = scripts.source


@cache
def source(name: str) -> str:
    """Return the text of a script that reads the clock which goes back."""
    return _plain_source(name).replace("redis.call('TIME')", _NOW)


@cache
def _names_of_scripts() -> dict[str, str]:
    return {hashlib.sha1(source(name).encode()).hexdigest(): name for name in scripts.NAMES}  # noqa: S324


def name_of_command(verb: str, sha: str) -> str:
    """Return the name of a command, of a script its own."""
    return _names_of_scripts().get(sha, "TIME" if verb == "EVAL" else verb)


class Died(BaseException):
    """Raised in an actor whose process dies: no ``except Exception`` may catch it."""


class Actor(threading.Thread):
    """One process of the system: runs one action at a time, from gate to gate."""

    def __init__(self, name: str) -> None:
        super().__init__(name=f"explorer-{name}", daemon=True)
        self._actions: queue.SimpleQueue[Callable[[], Any] | None] = queue.SimpleQueue()
        self._turn = threading.Semaphore(0)
        self.stopped = threading.Event()  # it stands at a gate, or its action has ended
        self.backend_pid = 0
        self.step: Any = None  # what the controller notes of the message
        self.piped: list[str] = []  # statements of a pipeline that has not ended
        self.loses = False  # the answer of the message
        self._dead = True
        self.is_over = True
        self.indexes: dict[tuple[str, str], Index] = {}
        self.start()

    def begin(self, name: str, action: Callable[[], Any]) -> None:
        """Start an action; it stops at its first gate."""
        self.label, self.value, self.error = name, None, None
        self.piped = []
        self.at: tuple[str, str] = ("", "begin")
        self.stopped.clear()
        self._actions.put(action)
        self.stopped.wait(60)

    def go_on(self, fate: str = GO) -> None:
        """Let the message that the actor stands before have this fate."""
        self._fate = fate
        self.stopped.clear()
        self._turn.release()

    def close(self) -> None:
        """End the thread."""
        self._actions.put(None)
        self.join(60)

    def run(self) -> None:
        while (action := self._actions.get()) is not None:
            try:
                database_identity()  # to connect, and to learn where to, is no step
                self.is_over, self._dead, self._fate = False, False, GO
                self._stop_at("", "begin")
                self.value = action()
            except BaseException as error:  # noqa: BLE001 - the controller judges it
                self.error = error
            finally:
                self.is_over = True  # what follows is no step
                self._leave()
                self.stopped.set()
        connections.close_all()

    def _leave(self) -> None:
        """Read what is still unanswered; a process that died, or broke, leaves nothing to be used again."""
        if self.error is None and not self._dead:
            try:
                for each in self.indexes.values():
                    each.flush()
            except Exception as error:  # noqa: BLE001 - as an error of the action itself
                self.error = error
        raw = connection().connection
        if self.error is not None or raw is None or raw.closed:  # an error may have been handled
            for each in self.indexes.values():
                client_of(each).connection_pool.disconnect()
            self.indexes.clear()
            connections.close_all()

    def _stop_at(self, server: str, what: str) -> str:
        """Wait for the controller; return the fate of the message."""
        if self._dead:
            raise Died
        if self.is_over:
            return GO
        self.at = (server, what)
        self.stopped.set()
        self._turn.acquire()
        if self._fate == DIE:
            self._dead = True
            for each in connections.all(initialized_only=True):
                if each.connection is not None:
                    each.connection.pgconn.finish()
            raise Died
        return self._fate

    def pass_postgresql(self, raw: psycopg.Connection[Any], what: str, wait: Callable[[], Any]) -> Any:
        """Pass the gate before a message to PostgreSQL."""
        self.backend_pid = raw.pgconn.backend_pid
        fate = self._stop_at(POSTGRESQL, what)
        if fate == BREAK:
            raw.pgconn.finish()
            raise psycopg.OperationalError("the connection broke before the statement was sent")
        self.loses = fate == LOSE
        return wait() if raw.pgconn.pipeline_status else self._end_message(raw, wait)

    def passes_into_pipeline(self, what: str) -> bool:
        """Whether a statement of a pipeline is a gate: all of them are one step, and the first stands for it."""
        self.piped.append(what)
        return len(self.piped) == 1 or what == _PIPELINE_ENDS

    def end_pipeline(self, raw: psycopg.Connection[Any], wait: Callable[[], Any]) -> Any:
        """Send the end of a pipeline, and wait for all answers."""
        *statements, _ = self.piped
        self.piped = []
        if not statements:
            return wait()
        self.step.what = "; ".join(statements)
        return self._end_message(raw, wait)

    def _end_message(self, raw: psycopg.Connection[Any], wait: Callable[[], Any]) -> Any:
        try:
            answer = wait()
        finally:
            self.step.in_transaction = raw.pgconn.transaction_status != TransactionStatus.IDLE
        if self.loses:
            raw.pgconn.finish()
            raise psycopg.OperationalError("the connection broke before the answer arrived")
        return answer

    def pass_redis(self, raw: Any, what: str, count: int, send: Callable[[], None]) -> None:
        """Pass the gate before a message to Redis."""
        fate = self._stop_at(REDIS, what)
        if fate == BREAK:
            raw.disconnect()
            raise redis.ConnectionError("the connection broke before the command was sent")
        send()
        if fate == LOSE:
            for _ in range(count):  # the server has carried it out once it answers
                try:
                    _read_response(raw)
                except redis.ResponseError:
                    continue
            raw.disconnect()
            raise redis.ConnectionError("the connection broke before the answer arrived")


_LOCAL = frozenset({"set_autocommit_gen", "enter_gen", "copy_to", "copy_end"})  # nothing is sent, or the rest of a COPY
_PIPELINE_ENDS = "exit_gen"
_SAVEPOINT = re.compile(r'"s\d+_x\d+"')
_read_response = redis.connection.Connection.read_response


def _describe_statement(generator: Any) -> str:
    """Return the text of a statement, or the name of the driver's step."""
    frame = getattr(generator, "gi_frame", None)
    values = frame.f_locals if frame is not None else {}
    query = values.get("query") or values.get("command") or values.get("statement")
    if query is None:
        return getattr(generator, "__name__", "message").strip("_")
    text = query.decode() if isinstance(query, bytes) else str(query)
    return _SAVEPOINT.sub("savepoint", " ".join(text.split()))


def _commands_of(packed: Any) -> list[str]:
    """Return the commands in a message, scripts by their names."""
    data = b"".join(packed) if isinstance(packed, list | tuple) else bytes(packed)
    found = re.finditer(rb"\*\d+\r\n\$\d+\r\n([A-Za-z]+)\r\n(?:\$40\r\n([0-9a-f]{40}))?", data)
    return [name_of_command(match[1].decode(), (match[2] or b"").decode()) for match in found]


def _connect_alone(alias: str) -> redis.Redis:
    """Return a client with a pool of its own, as each process has it."""
    shared = connect(alias).connection_pool
    pool = redis.ConnectionPool(shared.connection_class, **shared.connection_kwargs)
    return redis.Redis(connection_pool=pool)


def _with_our_clock(command: Any) -> Any:
    """Ask for the time by a script that reads the clock which goes back."""
    data = b"".join(command) if isinstance(command, list | tuple) else bytes(command)
    if _TIME not in data:
        return command
    text = f"return {_NOW}".encode()
    return [data.replace(_TIME, b"*3\r\n$4\r\nEVAL\r\n$%d\r\n%s\r\n$1\r\n0\r\n" % (len(text), text))]


@contextmanager
def gates() -> Iterator[None]:
    """Make every message of an actor a gate, and give each actor an index of its own."""
    plain_wait = psycopg.Connection.wait
    plain_send = redis.connection.Connection.send_packed_command
    others = cache(Index)  # its scripts read our clock

    def wait(self: Any, generator: Any, *args: Any, **options: Any) -> Any:
        actor = threading.current_thread()
        if not isinstance(actor, Actor) or actor.is_over:
            return plain_wait(self, generator, *args, **options)
        what = _describe_statement(generator)
        if what in _LOCAL or (self.pgconn.pipeline_status and not actor.passes_into_pipeline(what)):
            return plain_wait(self, generator, *args, **options)
        if what == _PIPELINE_ENDS:
            return actor.end_pipeline(self, lambda: plain_wait(self, generator, *args, **options))
        return actor.pass_postgresql(self, what, lambda: plain_wait(self, generator, *args, **options))

    def send(self: Any, command: Any, *args: Any, **options: Any) -> None:
        actor = threading.current_thread()
        names = _commands_of(command) if isinstance(actor, Actor) and not actor.is_over else []
        if not names or names[0] in ("SCRIPT", "HELLO", "CLIENT", "SELECT", "AUTH"):
            plain_send(self, _with_our_clock(command), *args, **options)
            return
        command = _with_our_clock(command)
        actor.pass_redis(self, "+".join(names), len(names), lambda: plain_send(self, command, *args, **options))

    def build(alias: str, prefix: str) -> Index:
        actor = threading.current_thread()
        if not isinstance(actor, Actor):
            return others(alias, prefix)
        if (alias, prefix) not in actor.indexes:
            with swapped((calls, "connect", _connect_alone)):
                actor.indexes[alias, prefix] = Index(alias, prefix)
        return actor.indexes[alias, prefix]

    with swapped(
        (psycopg.Connection, "wait", wait),
        (redis.connection.Connection, "send_packed_command", send),
        (index_package, "_build", build),
        (scripts, "source", source),
    ):
        yield
