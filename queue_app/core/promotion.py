"""Promotion: a task that waits rises, band by band, so that none starves behind a busy band.

A task of band ``b`` is treated as of the next higher band once it has waited the threshold
of ``b``, as of the one after that once it has waited that band's threshold on top, and so
on, up to high and never to critical. All of it counts from ``queued_at``. With the default
thresholds (normal 1200 s, low 600 s, background 600 s) a low task is treated as normal
after 600 s and as high after 1800 s, one of background as high after 2400 s.

The band of its own stays in the row. What a task is treated as is derived, here for one
task, in ``lua/lib/promotion.lua`` for the index, in ``TaskQuerySet`` for SQL.
"""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime, timedelta
from typing import Final, NamedTuple

from queue_app.core.priorities import Band

#: Band -> seconds that a task waits in it; ``None``, or absent: it never leaves it.
Thresholds = Mapping[Band, float | None]

#: Bands that a task can leave upwards, highest first. Nothing rises above high.
PROMOTED: Final = (Band.NORMAL, Band.LOW, Band.BACKGROUND)
#: Longer than this is never: keeps every sum within the range of dates.
MAX_SECONDS: Final = 10 * 365 * 86_400.0


class Rise(NamedTuple):
    """From the age ``after`` (s) on, counted from ``queued_at``, a task is treated as of ``to`` or higher."""

    to: Band
    after: float


class Risen(NamedTuple):
    """A task that was let rise, possibly over several bands at once."""

    task_id: uuid.UUID
    left: Band
    to: Band


def steps_of(risen: Iterable[Risen]) -> Counter[tuple[Band, Band]]:
    """Count the steps that these rises are made of, by (from, to)."""
    return Counter((Band(band), Band(band - 1)) for one in risen for band in range(one.left, one.to, -1))


def rises(own: Band, thresholds: Thresholds) -> Iterator[Rise]:
    """Yield the rises of a task whose own band is ``own``, in the order in which they come."""
    band, age = own, 0.0
    while band in PROMOTED:
        wait = thresholds.get(band)
        if wait is None or not 0 <= age + wait <= MAX_SECONDS:  # false for NaN too
            return
        age += wait
        band = Band(band - 1)
        yield Rise(band, age)


def effective_band(own: Band, queued_at: datetime, now: datetime, thresholds: Thresholds) -> Band:
    """Return the band that a task queued at ``queued_at`` is treated as at ``now``."""
    band, waited = own, now - queued_at
    for rise in rises(own, thresholds):
        if waited < timedelta(seconds=rise.after):
            break
        band = rise.to
    return band
