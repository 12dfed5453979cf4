"""Ask PostgreSQL and Redis whether they work, and for what metrics show, without waiting for a server that hangs.

Each server is asked by a thread of its own: first PostgreSQL, which knows whether Redis is away.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, NamedTuple

from django.db import InterfaceError, OperationalError, connections
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.backends.base.creation import TEST_DATABASE_PREFIX

from queue_app import conf
from queue_app.core.probe import Probe
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

WITHIN_SECONDS: Final = 5.0
#: Seconds after which an unused connection is closed. Several processes may share the scrapes.
KEEP_SECONDS: Final = 300.0
DATABASE, INDEX, SCHEDULER = PARTS = ("database", "index", "scheduler")


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
