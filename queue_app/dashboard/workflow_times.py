"""When the tasks of a workflow ran: bars on one axis.

A workflow that sleeps or waits for a person takes days, and its tasks seconds. So the axis leaves out long times in
which nothing ran, and what waits now does not stretch it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from itertools import pairwise
from typing import Final

from django.utils.translation import gettext as _

from queue_app.dashboard import labels
from queue_app.dashboard.workflows import Box

#: Maximum number of rows; height of a row with its distance; width of the axis, of its part for what waits now, and of
#: a cut.
MAX_BARS: Final = 80
ROW: Final = 24
WIDTH: Final = 560
WAITING_WIDTH: Final = 60
CUT_WIDTH: Final = 44
#: A time in which nothing ran is cut out if it is longer than this multiple of the time in which something ran.
LONG: Final = 2.0
MAX_CUTS: Final = 5
#: Height of the row with the lengths of the cuts.
HEAD: Final = 18

type Interval = tuple[float, float]  # seconds since the first start


@dataclass(frozen=True, slots=True)
class Bar:
    """When the tasks of a group ran."""

    box: Box
    y: int
    x: float
    width: float
    lasted: str
    is_waiting: bool  # drawn to the edge, and not to scale


@dataclass(frozen=True, slots=True)
class Cut:
    """A time in which nothing ran, and which the axis leaves out."""

    x: float
    lasted: str


@dataclass(frozen=True, slots=True)
class TimeBars:
    """The bars, earliest first, and the length of time that they stand for."""

    bars: list[Bar] = field(default_factory=list)
    cuts: list[Cut] = field(default_factory=list)
    whole: str = ""

    @property
    def waits(self) -> bool:
        """Whether a bar has no end yet."""
        return any(bar.is_waiting for bar in self.bars)

    @property
    def height(self) -> int:
        return ROW * len(self.bars) + (HEAD if self.cuts else 0)


def times(boxes: Sequence[Box], now: datetime) -> TimeBars:
    """Return the groups that have started as bars. What waits now reaches to the right edge, which has room for it."""
    began = sorted(
        ((box.group.started_at, box) for box in boxes if box.group.started_at is not None), key=lambda pair: pair[0]
    )
    if not began:
        return TimeBars()
    first = began[0][0]
    starts = [(start - first).total_seconds() for start, _box in began]
    ends = [_end(box, first, now) for _start, box in began]
    width = WIDTH - WAITING_WIDTH if None in ends and set(ends) != {None} else WIDTH
    axis = _Axis([(start, start if end is None else end) for start, end in zip(starts, ends, strict=True)], width)
    top = HEAD if axis.cuts else 0
    bars = [
        _bar(box, top + ROW * row, axis, start, end, (now - first).total_seconds())
        for row, ((_start, box), start, end) in enumerate(list(zip(began, starts, ends, strict=True))[:MAX_BARS])
    ]
    cuts = [Cut(round(axis.x(start), 1), labels.duration(end - start)) for start, end in axis.cuts]
    return TimeBars(bars, cuts, labels.duration(axis.whole))


def _end(box: Box, first: datetime, now: datetime) -> float | None:
    """Return when the last task of a group ended, or now while one runs; none if they only wait."""
    end = box.group.finished_at or (now if box.group.counts["executing"] else None)
    return None if end is None else (end - first).total_seconds()


def _bar(box: Box, y: int, axis: _Axis, start: float, end: float | None, now: float) -> Bar:  # noqa: PLR0913, PLR0917
    x = axis.x(start)
    seconds = max((now if end is None else end) - start, 0.0)
    lasted = labels.duration(seconds)
    if end is None:
        lasted = _("%(time)s so far, waits") % {"time": lasted}
    elif not box.group.finished_at:
        lasted = _("%(time)s so far") % {"time": lasted}
    width = WIDTH - x if end is None else max(axis.x(end) - x, 2.0)
    return Bar(box, y, round(x, 1), round(width, 1), lasted, is_waiting=end is None)


class _Axis:
    """The places of times on the axis, without the times that are cut out."""

    def __init__(self, intervals: Iterable[Interval], width: float) -> None:
        busy = _merged(intervals)
        gaps = [(before[1], after[0]) for before, after in pairwise(busy)]
        ran = sum(end - start for start, end in busy)
        long = [gap for gap in gaps if gap[1] - gap[0] > LONG * ran]
        longest = sorted(long, key=lambda gap: gap[0] - gap[1])[:MAX_CUTS]
        self.cuts = sorted(longest)
        self.whole = max(end for _start, end in busy)
        left = self.whole - sum(end - start for start, end in self.cuts)
        self._scale = (width - CUT_WIDTH * len(self.cuts)) / max(left, 0.001)

    def x(self, at: float) -> float:
        """Return the place of a time."""
        passed = [(start, end) for start, end in self.cuts if end <= at]
        return (at - sum(end - start for start, end in passed)) * self._scale + CUT_WIDTH * len(passed)


def _merged(intervals: Iterable[Interval]) -> list[Interval]:
    """Return the intervals in order, with overlapping ones merged."""
    found: list[Interval] = []
    for start, end in sorted(intervals):
        if found and start <= found[-1][1]:
            found[-1] = (found[-1][0], max(found[-1][1], end))
        else:
            found.append((start, end))
    return found
