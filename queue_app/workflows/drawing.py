"""What the pages of workflows show: the graph as SVG shapes, and what a workflow does now."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from itertools import pairwise
from typing import Final

from django.utils import timezone
from django.utils.translation import gettext as _

from queue_app.dashboard import labels
from queue_app.dashboard.labels import word
from queue_app.models.workflow import Workflow, WorkflowState
from queue_app.workflows.read import COMPENSATED, TaskGroup, WorkflowGraph
from queue_app.workflows.sql import AwaitedSignal, HeldWorkflow

WIDTH: Final = 176
HEIGHT: Final = 52
GAP_X: Final = 46
GAP_Y: Final = 14
MARGIN: Final = 8
#: Characters of a name that fit into a box.
FITS: Final = 22
#: Groups that the graph and the table show.
MAX_SHOWN: Final = 300
#: Width of the strip of states in the box of several tasks, and its distance from the edge.
STRIP: Final = WIDTH - 24
INSET: Final = 12
#: The states in the order in which a group takes its colour.
_WORST_FIRST: Final = (
    "dead_letter", "failed", "expired", "executing", "queued", "scheduled", "blocked", "cancelled", COMPENSATED,
    "completed",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Box:
    """A group as a box of the graph."""

    group: TaskGroup
    note: str  # instead of the state
    x: int
    y: int
    waits: list[tuple[str, int]]  # (name, number) of the groups that it waits for
    undoes: list[tuple[str, int]]  # of those that it compensates

    @property
    def title(self) -> str:
        """The name, with the number of tasks if there are several."""
        number = self.group.size
        name = self.group.name
        text = name if number == 1 else f"{number:,} \N{MULTIPLICATION SIGN} {name}"
        return text if len(text) <= FITS else text[: FITS - 1] + "…"

    @property
    def state(self) -> str:
        """The state that matters most."""
        return self.states[0][0]

    @property
    def states(self) -> list[tuple[str, int]]:
        """The number of tasks by state, the worst first."""
        return _by_state(self.group.counts)

    @property
    def strip(self) -> list[tuple[str, int, int]]:
        """A part (state, x, width) for each state, in the order of progress; none for a single task."""
        if self.group.size == 1:
            return []
        parts: list[tuple[str, int, int]] = []
        x, done = self.x + INSET, 0
        for state, number in reversed(self.states):
            done += number
            end = self.x + INSET + STRIP * done // self.group.size
            parts.append((state, x, max(end - x, 2)))
            x = end
        return parts

    @property
    def says(self) -> str:
        """The states in words."""
        return self.note or states_in_words(self.group.counts)


@dataclass(frozen=True, slots=True)
class GraphShapes:
    """The graph as shapes; ``left_out`` groups did not fit."""

    boxes: list[Box]
    lines: list[tuple[str, str, bool]]  # (path, condition, whether it is on the critical path)
    conditions: list[str]  # of the lines, without self-explanatory ones
    width: int
    height: int
    left_out: int


def _by_state(counts: Counter[str]) -> list[tuple[str, int]]:
    return [(state, counts[state]) for state in _WORST_FIRST if counts[state]]


def states_in_words(counts: Counter[str]) -> str:
    """Return numbers by state, the worst first, such as ``3 failed, 812 completed``."""
    found = _by_state(counts)
    return ", ".join(f"{number:,} {word(state)}" if counts.total() > 1 else word(state) for state, number in found)


@dataclass(frozen=True, slots=True)
class WorkflowStanding:
    """What a workflow does now, in a word and in a sentence."""

    word: str  # a state, or held, paused, waiting, cancelling
    why: str


def standing(flow: Workflow, held: HeldWorkflow | None, awaited: Sequence[AwaitedSignal]) -> WorkflowStanding:
    """Return what a workflow does now, and why it does not continue."""
    if flow.finished_at is not None:
        return WorkflowStanding(flow.state, flow.cancel_reason)
    if flow.paused:
        by = _("paused by %(name)s") % {"name": flow.paused_by} if flow.paused_by else _("paused")
        return WorkflowStanding("paused", f"{by}: {flow.paused_reason}" if flow.paused_reason else by)
    if flow.held_at is not None:
        seconds = (timezone.now() - flow.held_at).total_seconds()
        names = {"task": held.task if held else "", "time": labels.age(max(seconds, 0))}
        why = _("by %(task)s, for %(time)s") if names["task"] else _("for %(time)s")
        return WorkflowStanding("held", why % names)
    if flow.cancel_requested_at is not None and flow.state == WorkflowState.RUNNING:
        return WorkflowStanding("cancelling", flow.cancel_reason)
    if awaited:
        names = {"task": awaited[0].task, "signal": awaited[0].signal}
        return WorkflowStanding("waiting", _("%(task)s waits for the signal %(signal)s") % names)
    return WorkflowStanding(flow.state, "")


def graph(found: WorkflowGraph, awaited: Sequence[AwaitedSignal] = ()) -> GraphShapes:
    """Lay the groups out in columns by level; within a column each is near what it waits for.

    A compensation stands below what it undoes.
    """
    groups = found.groups[:MAX_SHOWN]
    shown = {group.number for group in groups}
    above = {group.number: number for group in groups for number in sorted(group.undoes & shown, reverse=True)}
    by_number = {group.number: group for group in groups}
    hung_on = {number: by_number[above.get(number, number)] for number in shown}
    level_of = {number: group.level for number, group in hung_on.items()}
    notes = {wait.task_id: _("waits for: %(signal)s") % {"signal": wait.signal} for wait in awaited}
    columns: dict[int, list[TaskGroup]] = {}
    for group in groups:
        columns.setdefault(level_of[group.number], []).append(group)
    places: dict[int, tuple[int, int]] = {}
    for level in sorted(columns):
        column = sorted(
            columns[level], key=lambda group: (_wanted_row(hung_on[group.number], places), group.number in above)
        )
        for row, group in enumerate(column):
            places[group.number] = (level, row)
    deepest = max((len(column) for column in columns.values()), default=0)
    names = {group.number: group.name for group in found.groups}
    boxes = {
        group.number: Box(
            group,
            notes.get(group.first, "") if group.first and group.size == 1 else "",
            *_corner(places[group.number], len(columns[level_of[group.number]]), deepest),
            [(names[before], before) for before in group.parents],
            [(names[number], number) for number in sorted(group.undoes)],
        )
        for group in groups
    }
    lines = [
        (_curve(boxes[before], boxes[group.number]), condition, group.is_critical and boxes[before].group.is_critical)
        for group in groups
        for before, condition in group.parents.items()
        if before in shown
    ]
    lines += [(_drop(boxes[number], boxes[undo]), "undoes", False) for undo, number in above.items()]
    width = 2 * MARGIN + len(columns) * WIDTH + max(len(columns) - 1, 0) * GAP_X
    height = 2 * MARGIN + deepest * HEIGHT + max(deepest - 1, 0) * GAP_Y
    conditions = sorted({condition for _, condition, _ in lines} - {"hold"})
    return GraphShapes(list(boxes.values()), lines, conditions, width, height, len(found.groups) - len(groups))


def _wanted_row(group: TaskGroup, places: dict[int, tuple[int, int]]) -> tuple[float, int]:
    rows = [places[before][1] for before in group.parents if before in places]
    return (sum(rows) / len(rows) if rows else group.number, group.number)


def _corner(place: tuple[int, int], rows: int, deepest: int) -> tuple[int, int]:
    level, row = place
    above = (deepest - rows) * (HEIGHT + GAP_Y) // 2  # columns are centred
    return MARGIN + level * (WIDTH + GAP_X), MARGIN + above + row * (HEIGHT + GAP_Y)


def _curve(before: Box, after: Box) -> str:
    x1, y1 = before.x + WIDTH, before.y + HEIGHT // 2
    x2, y2 = after.x, after.y + HEIGHT // 2
    half = (x2 - x1) // 2
    return f"M{x1},{y1} C{x1 + half},{y1} {x2 - half},{y2} {x2},{y2}"


def _drop(undone: Box, undo: Box) -> str:
    x = undone.x + WIDTH // 2
    return f"M{x},{undone.y + HEIGHT} L{x},{undo.y}"


# When the tasks of a workflow ran: bars on one axis.
#
# A workflow that sleeps or waits for a person takes days, and its tasks seconds. So the axis leaves out long times in
# which nothing ran, and what waits now does not stretch it.

#: Maximum number of rows; height of a row with its distance; width of the axis, of its part for what waits now, and of
#: a cut.
MAX_BARS: Final = 80
ROW: Final = 24
TIMES_WIDTH: Final = 560
WAITING_WIDTH: Final = 60
CUT_WIDTH: Final = 44
#: A time in which nothing ran is cut out if it is longer than this multiple of the time in which something ran.
LONG: Final = 2.0
MAX_CUTS: Final = 5
#: Height of the row with the lengths of the cuts, and of that with the times.
HEAD: Final = 18
#: Seconds between two times of the axis; maximum number of times, and their least distance.
STEPS: Final = (0.1, 0.5, 1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1800, 3600, 7200, 21_600, 43_200, 86_400, 604_800)
MAX_TIMES: Final = 7
APART: Final = 52

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
    ticks: list[tuple[float, str]] = field(default_factory=list)  # (place, time)
    whole: str = ""
    first: datetime | None = None

    @property
    def waits(self) -> bool:
        """Whether a bar has no end yet."""
        return any(bar.is_waiting for bar in self.bars)

    @property
    def bottom(self) -> int:
        return ROW * len(self.bars) + (HEAD if self.cuts else 0)

    @property
    def height(self) -> int:
        return self.bottom + HEAD


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
    width = TIMES_WIDTH - WAITING_WIDTH if None in ends and set(ends) != {None} else TIMES_WIDTH
    axis = _Axis([(start, start if end is None else end) for start, end in zip(starts, ends, strict=True)], width)
    top = HEAD if axis.cuts else 0
    bars = [
        _bar(box, top + ROW * row, axis, start, end, (now - first).total_seconds())
        for row, ((_start, box), start, end) in enumerate(list(zip(began, starts, ends, strict=True))[:MAX_BARS])
    ]
    cuts = [Cut(round(axis.x(start), 1), labels.duration(end - start)) for start, end in axis.cuts]
    return TimeBars(bars, cuts, axis.ticks(), labels.duration(axis.whole), first)


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
    width = TIMES_WIDTH - x if end is None else max(axis.x(end) - x, 2.0)
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

    def ticks(self) -> list[tuple[float, str]]:
        """Return round times since the first start, with their places."""
        ends = [0.0, *(at for cut in self.cuts for at in cut), self.whole]
        parts = list(zip(ends[::2], ends[1::2], strict=True))
        shown = sum(end - start for start, end in parts)
        step = next((step for step in STEPS if shown / step <= MAX_TIMES), STEPS[-1])
        found: list[tuple[float, str]] = []
        for start, end in parts:
            at = max(1, math.ceil(start / step)) * step
            while at <= end:
                x = round(self.x(at), 1)
                if x <= TIMES_WIDTH - APART and (not found or x - found[-1][0] >= APART):
                    found.append((x, labels.duration(at)))
                at += step
        return found


def _merged(intervals: Iterable[Interval]) -> list[Interval]:
    """Return the intervals in order, with overlapping ones merged."""
    found: list[Interval] = []
    for start, end in sorted(intervals):
        if found and start <= found[-1][1]:
            found[-1] = (found[-1][0], max(found[-1][1], end))
        else:
            found.append((start, end))
    return found
