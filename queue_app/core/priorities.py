"""The five priority bands, their names, and the mapping from Django's -100..100."""

import uuid
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime, timedelta
from enum import IntEnum
from functools import cache
from typing import Final, NamedTuple

from queue_app.exceptions import InvalidTaskData


class Band(IntEnum):
    """A priority band; lower numbers run first."""

    CRITICAL = 0
    HIGH = 1
    NORMAL = 2
    LOW = 3
    BACKGROUND = 4

    def __init__(self, _number: int) -> None:
        self.label: str = self._name_.lower()  # in all interfaces; a property would be read for each task


BAND_NAMES: Final = tuple(band.label for band in Band)  # by number
_BY_NAME: Final = {band.label: band for band in Band} | {"medium": Band.NORMAL}
#: Lowest Django priority of each band above background, highest first.
_THRESHOLDS: Final = ((75, Band.CRITICAL), (25, Band.HIGH), (-24, Band.NORMAL), (-74, Band.LOW))
_TO_DJANGO: Final = {Band.CRITICAL: 100, Band.HIGH: 50, Band.NORMAL: 0, Band.LOW: -50, Band.BACKGROUND: -100}


def parse_band(value: object, *, field: str = "priority") -> Band:
    """Return the band named ``value`` (``medium`` means normal); raise ``InvalidTaskData`` for other values."""
    if isinstance(value, Band):
        return value
    band = _BY_NAME.get(value) if isinstance(value, str) else None
    if band is None:
        raise InvalidTaskData(
            field,
            f"{value!r} is not a priority; use one of {', '.join(BAND_NAMES)}, or medium for normal.",
            code="unknown_priority",
        )
    return band


@cache
def band_from_django(priority: int) -> Band:
    """Return the band of a Django task priority (-100..100)."""
    for threshold, band in _THRESHOLDS:
        if priority >= threshold:
            return band
    return Band.BACKGROUND


def django_priority(band: Band) -> int:
    """Return the Django priority that represents ``band``."""
    return _TO_DJANGO[band]


# Promotion: a waiting task rises band by band, so that no task starves behind a busy band.
#
# Each band has a threshold. When a task has waited that long, it is treated as a task of the next
# higher band, then of the one after that, and so on up to high, never to critical. Waits add up
# from ``queued_at``. With the default thresholds (normal 1200 s, low 600 s, background 600 s) a low
# task is treated as normal after 600 s and as high after 1800 s; a background task as high after
# 2400 s.
#
# The row keeps the task's own band. The effective band is derived here for one task, in
# ``lua/lib/promotion.lua`` for the index and in ``TaskQuerySet`` for SQL.

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
