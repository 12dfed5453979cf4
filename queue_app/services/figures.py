"""Everything that metrics show, read within a time limit: a server that hangs must not hang the answer.

The two servers are asked at the same time, each by a thread of its own.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from django.db import connections

from queue_app import conf
from queue_app.index import Census, get_index
from queue_app.rows import figures as rows
from queue_app.rows.database import alias
from queue_app.rows.figures import RowFigures
from queue_app.services.health import Probe

WITHIN_SECONDS: Final = 5.0


@dataclass(frozen=True, slots=True)
class Figures:
    """What the servers told; ``None`` stands for one that did not answer in time."""

    index: Census | None
    rows: RowFigures | None

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


def _read_rows() -> RowFigures:
    try:
        return rows.read()
    finally:
        connections[alias()].close()  # this thread's own


_rows = Probe(_read_rows)
_index = Probe(lambda: get_index().census())


def collect(within: float = WITHIN_SECONDS) -> Figures:
    """Return the figures after at most ``within`` seconds."""
    index, found = _index.ask(), _rows.ask()
    return Figures(index.result(within), found.result(within))
