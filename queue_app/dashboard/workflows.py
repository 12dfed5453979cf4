"""What the pages of workflows show: the graph as SVG shapes, and what a workflow does now."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from django.utils import timezone
from django.utils.translation import gettext as _

from queue_app.dashboard import labels
from queue_app.dashboard.translation import word
from queue_app.models.workflow import Workflow, WorkflowState
from queue_app.services.read.workflows import TaskGroup, WorkflowGraph
from queue_app.sql.workflow_health import AwaitedSignal, HeldWorkflow

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
    "dead_letter", "failed", "expired", "executing", "queued", "scheduled", "blocked", "cancelled", "completed",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Box:
    """A group as a box of the graph."""

    group: TaskGroup
    note: str  # instead of the state
    x: int
    y: int
    waits: list[tuple[str, int]]  # (name, number) of the groups that it waits for

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
        counts = self.group.counts
        return next(state for state in _WORST_FIRST if counts[state])

    @property
    def states(self) -> list[tuple[str, int]]:
        """The number of tasks by state, the worst first."""
        return [(state, self.group.counts[state]) for state in _WORST_FIRST if self.group.counts[state]]

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


def states_in_words(counts: Counter[str]) -> str:
    """Return numbers by state, the worst first, such as ``3 failed, 812 completed``."""
    known = [state for state in _WORST_FIRST if counts[state]]
    if counts.total() == 1:
        return word(known[0])
    return ", ".join(f"{counts[state]:,} {word(state)}" for state in known)


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

    Compensations come last: they wait for no other task, but for the end of all.
    """
    groups = found.groups[:MAX_SHOWN]
    shown = {group.number for group in groups}
    last = max((group.level for group in groups if not group.is_compensation), default=-1)
    level_of = {group.number: group.level + (last + 1 if group.is_compensation else 0) for group in groups}
    notes = {wait.task_id: _("waits for: %(signal)s") % {"signal": wait.signal} for wait in awaited}
    columns: dict[int, list[TaskGroup]] = {}
    for group in groups:
        columns.setdefault(level_of[group.number], []).append(group)
    places: dict[int, tuple[int, int]] = {}
    for level in sorted(columns):
        column = sorted(columns[level], key=lambda group: _wanted_row(group, places))
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
        )
        for group in groups
    }
    lines = [
        (_curve(boxes[before], boxes[group.number]), condition, group.is_critical and boxes[before].group.is_critical)
        for group in groups
        for before, condition in group.parents.items()
        if before in shown
    ]
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
