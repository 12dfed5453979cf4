"""Ask PostgreSQL and Redis whether they work, and for what metrics show, without waiting for a server that hangs.

Each server is asked by a thread of its own: first PostgreSQL, which knows whether Redis is away.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import Final, NamedTuple

from django.db import InterfaceError, OperationalError, connections
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.backends.base.creation import TEST_DATABASE_PREFIX

from queue_app import conf
from queue_app.core.reasons import Level
from queue_app.diagnose.system import System, troubles
from queue_app.index import Index, IndexStats, redis_index, redis_is_away, rows_index
from queue_app.index.server import index_health
from queue_app.services.read.stats import READY, UNREACHABLE
from queue_app.services.upkeep.jobs import leader_lapses
from queue_app.services.way import follow
from queue_app.sql import stats as row_stats
from queue_app.sql.database import alias, is_read_only
from queue_app.sql.snapshot import Way
from queue_app.sql.stats import RowStats

#: Seconds after which an unanswered question is abandoned and asked again.
ABANDON_SECONDS = 10.0
WITHIN_SECONDS: Final = 5.0
#: Seconds after which an unused connection is closed. Several processes may share the scrapes.
KEEP_SECONDS: Final = 300.0
DATABASE, INDEX, SCHEDULER = PARTS = ("database", "index", "scheduler")


class Probe[T]:
    """A question to a server, asked by a thread of its own; callers that ask meanwhile share the answer.

    The thread keeps its connections, waits ``linger`` seconds for the next question, and calls ``on_end`` at its end.
    """

    def __init__(
        self, question: Callable[[], T], *, linger: float = 0.0, on_end: Callable[[], None] | None = None
    ) -> None:
        self._question = question
        self._linger = linger
        self._on_end = on_end
        self._lock = threading.Lock()
        self._pending: PendingAnswer[T] | None = None
        self._asker: _Asker | None = None

    def ask(self) -> PendingAnswer[T]:
        """Ask, unless an answer is pending; return the pending answer."""
        with self._lock:
            pending = self._pending
            if pending is None or pending.done.is_set() or pending.age > ABANDON_SECONDS:
                pending = self._pending = PendingAnswer(self._question)
                if self._asker is None or not self._asker.accept(pending):
                    self._asker = _Asker(pending, self._linger, self._on_end)
                    self._asker.start()
        return pending


class PendingAnswer[T]:
    """The answer to a question that was asked once."""

    def __init__(self, question: Callable[[], T]) -> None:
        self.done = threading.Event()
        self._question = question
        self._answer: T | None = None
        self._asked_at = time.monotonic()

    @property
    def age(self) -> float:
        return time.monotonic() - self._asked_at

    def result(self, within: float) -> T | None:
        """Return the answer; ``None`` if it failed or took longer than ``within`` seconds since the question."""
        self.done.wait(max(0.0, within - self.age))
        return self._answer

    def fetch(self) -> None:
        """Ask the server; the caller sets ``done``."""
        with suppress(Exception):  # any error means that the server does not answer
            self._answer = self._question()


class _Asker(threading.Thread):
    """Asks one question after the other. A daemon: a server that hangs must not keep the process from ending."""

    def __init__(self, first: PendingAnswer[object], linger: float, on_end: Callable[[], None] | None) -> None:
        super().__init__(name="taskqueue-probe", daemon=True)
        self._accepted: SimpleQueue[PendingAnswer[object]] = SimpleQueue()
        self._accepted.put(first)
        self._linger = linger
        self._on_end = on_end
        self._lock = threading.Lock()
        self._is_free = False

    def accept(self, pending: PendingAnswer[object]) -> bool:
        """Take a question; return false if the thread is busy, has ended, or belongs to the process before a fork."""
        with self._lock:
            if not self._is_free or not self.is_alive():
                return False
            self._is_free = False
            self._accepted.put(pending)
            return True

    def run(self) -> None:
        while pending := self._next():
            pending.fetch()
            with self._lock:
                self._is_free = True
            pending.done.set()
        if self._on_end:
            self._on_end()

    def _next(self) -> PendingAnswer[object] | None:
        try:
            return self._accepted.get(timeout=self._linger)
        except Empty:
            with self._lock:
                if self._is_free:
                    self._is_free = False
                    return None
            return self._accepted.get()  # accepted at this moment


class DatabaseHealth(NamedTuple):
    """What the rows say of the index, whether PostgreSQL refuses writes, like a standby, whether a scheduler leads."""

    way: Way
    is_read_only: bool
    has_leader: bool


def _ask_database() -> DatabaseHealth:
    try:
        return DatabaseHealth(follow(), is_read_only(), leader_lapses() is not None)
    finally:
        connections[alias()].close()  # opened for each question, as workers need connections too


def _of_rows[T](question: Callable[[Index], T]) -> T:
    """Ask the index in PostgreSQL, on a connection for this question alone."""
    try:
        return question(rows_index())
    finally:
        connections[alias()].close()


def _of_index[T](question: Callable[[Index], T]) -> dict[str, Probe[T]]:
    """Return the probes that ask Redis and PostgreSQL: a Redis that hangs delays only its own."""
    return {conf.REDIS: Probe(lambda: question(redis_index())), conf.ROWS: Probe(lambda: _of_rows(question))}


def _known_way() -> str:
    """Return where claims find tasks, as far as this process knows."""
    return conf.ROWS if redis_is_away.is_set() else conf.get().index


database = Probe(_ask_database)
index = _of_index(index_health)


@dataclass(frozen=True, slots=True)
class Health:
    """Which parts of the queue work; ``reasons`` maps each part that does not to the reason.

    ``way``: where claims find tasks; ``None`` if the database does not answer.
    """

    reasons: dict[str, str]
    way: Way | None = None

    def status(self, part: str) -> str:
        return "not ok" if part in self.reasons else "ok"


def check(within: float) -> Health:
    """Return which parts work, after at most ``within`` seconds."""
    pending = database.ask()
    pending.result(within / 2)
    found = index[_known_way()].ask().result(within / 2)
    rows = pending.result(within)
    reasons: dict[str, str] = {}
    if rows is None:
        reasons[DATABASE] = "The database does not answer, or its tables are missing."
    elif rows.is_read_only:
        reasons[DATABASE] = "The database is read-only, like a standby: no task is accepted or started."
    if found is None and _known_way() == conf.ROWS:  # both parts are in PostgreSQL
        state = System(READY)
        reasons[INDEX] = reasons.setdefault(DATABASE, "The database does not answer, or its tables are missing.")
    else:
        has_leader, way = (rows.has_leader, rows.way) if rows else (None, None)
        is_current = way is None or found is None or found.generation == way.number
        state = System(
            found.state if found else UNREACHABLE, has_leader, found.refusal if found else "", is_current, way=way
        )
    for trouble in troubles(state):
        if trouble.kind.level is Level.FAIL:
            reasons.setdefault(SCHEDULER if trouble.kind.check == SCHEDULER else INDEX, trouble.text)
    return Health(reasons, rows.way if rows else None)


@dataclass(frozen=True, slots=True)
class Metrics:
    """The answers of both servers; ``None`` for a server that did not answer in time."""

    index: IndexStats | None
    rows: RowStats | None
    redis_answers: bool | None = None  # unless the index says it

    @property
    def leader_age(self) -> float | None:
        """Seconds since the leading scheduler renewed its leadership; ``None`` when none is known."""
        if self.rows is None or self.rows.leader_lapses is None:
            return None
        return max(0.0, conf.get().scheduler.leader_seconds - self.rows.leader_lapses)

    @property
    def ready(self) -> bool | None:
        """Whether the index may propose tasks; ``None`` when a server did not answer."""
        if self.index is None or self.rows is None:
            return None
        return System(self.index.state, is_current=self.index.generation == self.rows.way.number).is_open


def _read_rows() -> RowStats:
    """Read the rows on this thread's connection, which lives as long as the project's own connections.

    Connecting takes ten times as long as reading. A kept connection may have broken since the last question, which says
    nothing about the server now, so the question is asked again on a new one.
    """
    database = connections[alias()]
    was_open = database.connection is not None
    try:
        return _read_and_follow()
    except (OperationalError, InterfaceError):
        if not was_open:
            raise
        database.close()
        return _read_and_follow()
    finally:
        database.close_if_unusable_or_obsolete()
        if _is_for_tests(database):
            database.close()


def _read_and_follow() -> RowStats:
    found = row_stats.read()
    follow(found.way)
    return found


def _is_for_tests(database: BaseDatabaseWrapper) -> bool:
    """Return whether this is one of Django's test databases, which cannot be dropped while a connection is open."""
    name = str(database.settings_dict["NAME"])
    return name.startswith(TEST_DATABASE_PREFIX) or name == database.settings_dict["TEST"]["NAME"]


def _close_connection() -> None:
    connections[alias()].close()


_rows = Probe(_read_rows, linger=KEEP_SECONDS, on_end=_close_connection)
_stats = _of_index(lambda index: index.stats())
_redis = Probe(lambda: redis_index().generation())


def collect(within: float = WITHIN_SECONDS) -> Metrics:
    """Return the metrics after at most ``within`` seconds."""
    pending = _rows.ask()
    pending.result(within / 2)
    asked = _redis.ask() if redis_is_away.is_set() else None
    found = _stats[_known_way()].ask().result(within / 2)
    return Metrics(found, pending.result(within), asked.result(within / 2) is not None if asked else None)
