"""Tell the scheduler which of its jobs may have something to do.

Most of the time none has, and one round trip says so for all of them. Each job still finds its work by conditions of
its own: the look spares what would find nothing, and what comes after it is seen by the next one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from queue_app import conf
from queue_app.core.process import machine_identity
from queue_app.rows import look as rows

type Answers = Mapping[str, Any]


def look(asked: Iterable[str]) -> Answers:
    """Answer questions of ``rows.look`` as of now. Raises database errors."""
    settings, names = conf.get(), set(asked)
    params: dict[str, Any] = {
        "silent": settings.worker.missed_heartbeats,
        "overdue": settings.scheduler.overdue_seconds,
    }
    if "neighbours" in names:
        params["neighbours"] = machine_identity() or None  # where it is unknown, nobody's
    return rows.look(names, params)
