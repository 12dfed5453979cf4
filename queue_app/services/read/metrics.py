"""Everything that metrics show, read within a time limit: a server that hangs must not hang the answer.

The two servers are asked at the same time, each by a thread of its own.
"""

from __future__ import annotations

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
#: A connection that nobody asked anything for so long is closed. Several processes may share the scrapes.
KEEP_SECONDS: Final = 300.0


@dataclass(frozen=True, slots=True)
class Metrics:
    """What the servers told; ``None`` stands for one that did not answer in time."""

    index: IndexStats | None
    rows: RowStats | None

    @property
    def leader_age(self) -> float | None:
        """Seconds since the leading scheduler renewed its leadership; ``None`` when nobody leads, or nobody knows."""
        if self.index is None or self.index.leader_lapses is None:
            return None
        return max(0.0, conf.get().scheduler.leader_seconds - self.index.leader_lapses)

    @property
    def ready(self) -> bool | None:
        """Whether the index may propose work; ``None`` when a server did not answer."""
        if self.index is None or self.rows is None:
            return None
        return self.index.state == "ready" and self.index.generation == self.rows.generation


def _read_rows() -> RowStats:
    """Read the rows on this thread's connection, which is kept as long as the project keeps its own.

    To connect takes ten times as long as to read. One that has broken since the last time
    says nothing about the server now, so a new one is tried.
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
    """Whether the database is one of Django's for tests, which cannot be dropped while somebody is connected."""
    name = str(database.settings_dict["NAME"])
    return name.startswith(TEST_DATABASE_PREFIX) or name == database.settings_dict["TEST"]["NAME"]


def _let_go() -> None:
    connections[alias()].close()


_rows = Probe(_read_rows, linger=KEEP_SECONDS, goodbye=_let_go)
_index = Probe(lambda: get_index().stats())


def collect(within: float = WITHIN_SECONDS) -> Metrics:
    """Return the figures after at most ``within`` seconds."""
    index, found = _index.ask(), _rows.ask()
    return Metrics(index.result(within), found.result(within))
