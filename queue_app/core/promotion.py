"""Promotion: a waiting task rises band by band, so that no task starves behind a busy band.

Each band has a threshold. When a task has waited that long, it is treated as a task of the next
higher band, then of the one after that, and so on up to high, never to critical. Waits add up
from ``queued_at``. With the default thresholds (normal 1200 s, low 600 s, background 600 s) a low
task is treated as normal after 600 s and as high after 1800 s; a background task as high after
2400 s.

The row keeps the task's own band. The effective band is derived here for one task, in
``lua/lib/promotion.lua`` for the index and in ``TaskQuerySet`` for SQL.
"""

import uuid
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime, timedelta
from typing import Final, NamedTuple

from queue_app.core.priorities import Band

#: Band -> seconds that a task waits in it; ``None`` or absent: no promotion.
Thresholds = Mapping[Band, float | None]

#: Bands from which tasks are promoted, highest first.
PROMOTED: Final = (Band.NORMAL, Band.LOW, Band.BACKGROUND)
#: Band in which all tasks of a queue of the order ``arrival`` stand; none of them is promoted.
ARRIVAL_BAND: Final = Band.NORMAL
#: Longest wait that counts; it keeps every sum within the range of dates.
MAX_SECONDS: Final = 10 * 365 * 86_400.0


class Rise(NamedTuple):
    """A task that was queued ``after`` seconds ago, or earlier, is treated as a task of ``to`` or higher."""

    to: Band
    after: float


class Risen(NamedTuple):
    """A promoted task; it may have risen several bands at once."""

    task_id: uuid.UUID
    left: Band
    to: Band


def steps_of(risen: Iterable[Risen]) -> Counter[tuple[Band, Band]]:
    """Count the single steps of these promotions, by (from, to)."""
    return Counter((Band(band), Band(band - 1)) for one in risen for band in range(one.left, one.to, -1))


def rises(own: Band, thresholds: Thresholds) -> Iterator[Rise]:
    """Yield the promotions of a task of band ``own``, earliest first."""
    band, age = own, 0.0
    while band in PROMOTED:
        wait = thresholds.get(band)
        if wait is None or not 0 <= age + wait <= MAX_SECONDS:  # false for NaN too
            return
        age += wait
        band = Band(band - 1)
        yield Rise(band, age)


def effective_band(own: Band, queued_at: datetime, now: datetime, thresholds: Thresholds) -> Band:
    """Return the effective band at ``now`` of a task that was queued at ``queued_at``."""
    band, waited = own, now - queued_at
    for rise in rises(own, thresholds):
        if waited < timedelta(seconds=rise.after):
            break
        band = rise.to
    return band
