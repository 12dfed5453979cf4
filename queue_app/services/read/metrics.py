"""Read everything that metrics show within a time limit: a server that hangs must not delay the answer.

Both servers are asked at the same time, each by a thread of its own.
"""

from dataclasses import dataclass
from typing import Final

from django.db import InterfaceError, OperationalError, connections
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.backends.base.creation import TEST_DATABASE_PREFIX

from queue_app import conf
from queue_app.index import IndexStats, get_index
from queue_app.services.read.health import Probe
from queue_app.sql import stats as rows
from queue_app.sql.database import alias
from queue_app.sql.stats import RowStats

WITHIN_SECONDS: Final = 5.0
#: Seconds after which an unused connection is closed. Several processes may share the scrapes.
KEEP_SECONDS: Final = 300.0


@dataclass(frozen=True, slots=True)
class Metrics:
    """The answers of both servers; ``None`` for a server that did not answer in time."""

    index: IndexStats | None
    rows: RowStats | None

    @property
    def leader_age(self) -> float | None:
        """Seconds since the leading scheduler renewed its leadership; ``None`` when none leads or Redis is away."""
        if self.index is None or self.index.leader_lapses is None:
            return None
        return max(0.0, conf.get().scheduler.leader_seconds - self.index.leader_lapses)

    @property
    def ready(self) -> bool | None:
        """Whether the index may propose tasks; ``None`` when a server did not answer."""
        if self.index is None or self.rows is None:
            return None
        return self.index.state in ("ready", "loading") and self.index.generation == self.rows.generation


def _read_rows() -> RowStats:
    """Read the rows on this thread's connection, which lives as long as the project's own connections.

    Connecting takes ten times as long as reading. A kept connection may have broken since the last question, which says
    nothing about the server now, so the question is asked again on a new one.
    """
    database = connections[alias()]
    was_open = database.connection is not None
    try:
        return rows.read()
    except (OperationalError, InterfaceError):
        if not was_open:
            raise
        database.close()
        return rows.read()
    finally:
        database.close_if_unusable_or_obsolete()
        if _is_for_tests(database):
            database.close()


def _is_for_tests(database: BaseDatabaseWrapper) -> bool:
    """Return whether this is one of Django's test databases, which cannot be dropped while a connection is open."""
    name = str(database.settings_dict["NAME"])
    return name.startswith(TEST_DATABASE_PREFIX) or name == database.settings_dict["TEST"]["NAME"]


def _close_connection() -> None:
    connections[alias()].close()


_rows = Probe(_read_rows, linger=KEEP_SECONDS, on_end=_close_connection)
_index = Probe(lambda: get_index().stats())


def collect(within: float = WITHIN_SECONDS) -> Metrics:
    """Return the metrics after at most ``within`` seconds."""
    index, found = _index.ask(), _rows.ask()
    return Metrics(index.result(within), found.result(within))
