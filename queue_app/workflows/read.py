"""Workflows as pages show them: why a task waits, groups, the critical path; and the sweep of workflows.

Tasks of one type that wait for the same groups form a group, so a thousand ``resize`` are one box. Small workflows are
not folded. The cost grows with the number of tasks and edges, each of which is read once. A task is a number here.
"""

from __future__ import annotations

import math
import uuid
from collections import Counter
from collections.abc import Callable, Container, Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import accumulate
from typing import Final

from django.db.models import Q
from django.db.models.functions import Now

from queue_app.core.states import FAILURES, Status
from queue_app.exceptions import InvalidTransition, WorkflowNotFound
from queue_app.models import Workflow
from queue_app.models.workflow import STANDINGS
from queue_app.services.advance import changing, push_opened
from queue_app.services.lifecycle.dependencies import settle_all
from queue_app.services.notify import events
from queue_app.sql import workflow_settle as settle_rows
from queue_app.sql.database import alias
from queue_app.sql.workflow_advance import go_on
from queue_app.workflows import sql as rows
from queue_app.workflows.sql import Holding, Nodes
from queue_app.workflows.steer import cancel_workflow

#: Workflows of at most this many tasks are shown task by task.
UNFOLDED: Final = 40
#: Above this number of groups, tasks of one type are also folded if they wait for different groups.
MAX_GROUPS: Final = 200
#: Tasks named as holding the workflow.
MAX_HOLDING: Final = 20
#: State of a completed task in the graph whose compensation has completed.
COMPENSATED: Final = "compensated"
#: The task of ``Workflow.map``, and its name in the graph.
_MAP: Final = "queue_app.workflows.builder.expand"


@dataclass(slots=True)
class TaskGroup:
    """Tasks of one type that wait for the same groups; often one task."""

    number: int
    task_type: str
    level: int  # the longest way from a task that waits for none
    is_compensation: bool
    tasks: list[int] = field(default_factory=list)
    parents: dict[int, str] = field(default_factory=dict)  # {group: condition}
    is_critical: bool = False  # a task of it is on the critical path
    own_name: str = ""  # of a single task
    first: uuid.UUID | None = None  # the id of its first task
    undoes: set[int] = field(default_factory=set)  # groups with the tasks that it compensates
    counts: Counter[str] = field(default_factory=Counter)  # tasks by state; completed ones that are undone apart
    started_at: datetime | None = None  # when the first of them started
    finished_at: datetime | None = None  # when the last of them ended; none while one is pending

    @property
    def name(self) -> str:
        """The name of a single task if it has one, else the name of the function."""
        return self.own_name or ("map" if self.task_type == _MAP else self.task_type.rpartition(".")[2])

    @property
    def size(self) -> int:
        return len(self.tasks)


@dataclass(frozen=True, slots=True)
class WorkflowGraph:
    """The groups in an order in which each follows what it waits for."""

    groups: list[TaskGroup]
    critical: list[uuid.UUID]  # the critical path: each task waited for the one before it
    holding: list[Holding]  # tasks that ended without success, and hold the workflow
    tasks: int
    edges: int


@dataclass(frozen=True, slots=True)
class _Edges:
    """What each task waits for: places in the lists of edges."""

    first: list[int]  # task -> its first place; one more at the end
    before: Sequence[int]
    conditions: Sequence[str]

    def parents(self, task: int) -> Sequence[int]:
        return self.before[self.first[task] : self.first[task + 1]]


def graph_of(workflow_id: uuid.UUID) -> WorkflowGraph:
    """Return the graph of a workflow as it is now."""
    nodes = rows.read(workflow_id)
    numbers = [0] * len(nodes.states)
    for task in nodes.after:
        numbers[task] += 1
    edges = _Edges([0, *accumulate(numbers)], nodes.before, nodes.conditions)
    levels = _levels(nodes, numbers)
    groups = _folded(nodes, edges, levels)
    path = _critical_path(nodes, edges)
    on_path = set(path)
    undone = {task for undo, task in nodes.undoing.items() if nodes.states[undo] == Status.COMPLETED}
    for group in groups:
        _describe(group, nodes, undone)
        group.is_critical = not on_path.isdisjoint(group.tasks)
    holding = rows.holding(workflow_id, MAX_HOLDING)
    return WorkflowGraph(groups, [nodes.id_of(task) for task in path], holding, len(nodes.states), len(nodes.before))


def _describe(group: TaskGroup, nodes: Nodes, undone: Container[int | None]) -> None:
    tasks = group.tasks
    group.first = nodes.id_of(tasks[0])
    group.own_name = nodes.names.get(tasks[0], "") if len(tasks) == 1 else ""
    group.counts = Counter(COMPENSATED if task in undone else nodes.states[task] for task in tasks)
    group.started_at = _moment(min(map(nodes.started.__getitem__, tasks)))
    group.finished_at = _moment(max(map(nodes.finished.__getitem__, tasks)))


def _moment(seconds: float) -> datetime | None:
    return None if math.isinf(seconds) else datetime.fromtimestamp(seconds, UTC)


def _levels(nodes: Nodes, numbers: Sequence[int]) -> dict[int, int]:
    """Return {task: level}, in an order in which each task follows what it waits for."""
    left = list(numbers)
    children: list[list[int]] = [[] for _ in left]
    for after, before in zip(nodes.after, nodes.before, strict=True):
        children[before].append(after)
    levels = {task: 0 for task, number in enumerate(left) if not number}
    deepest = [0] * len(left)
    ready = list(levels)
    for task in ready:  # which grows
        below = levels[task] + 1
        for child in children[task]:
            deepest[child] = max(deepest[child], below)
            left[child] -= 1
            if not left[child]:
                levels[child] = deepest[child]
                ready.append(child)
    return levels


def _folded(nodes: Nodes, edges: _Edges, levels: dict[int, int]) -> list[TaskGroup]:
    in_order = sorted(levels, key=levels.__getitem__)
    if len(in_order) <= UNFOLDED:
        return _groups(nodes, edges, levels, in_order, lambda task, _waits: task)
    found = _groups(nodes, edges, levels, in_order, lambda _task, waits: waits)
    if len(found) <= MAX_GROUPS:
        return found
    return _groups(nodes, edges, levels, in_order, lambda _task, _waits: None)


def _groups(
    nodes: Nodes,
    edges: _Edges,
    levels: dict[int, int],
    in_order: Iterable[int],
    detail: Callable[[int, frozenset[tuple[int, str]]], Hashable],
) -> list[TaskGroup]:
    """Fold tasks of one type and level that share ``detail(task, the groups that it waits for)``."""
    by_key: dict[Hashable, TaskGroup] = {}
    group_of = [0] * len(nodes.states)
    known: dict[tuple[int, str], frozenset[tuple[int, str]]] = {}  # most tasks wait for one group
    for task in in_order:
        start, end = edges.first[task], edges.first[task + 1]
        if end - start == 1:
            wait = (group_of[edges.before[start]], edges.conditions[start])
            waits = known.get(wait) or known.setdefault(wait, frozenset((wait,)))
        else:
            before = map(group_of.__getitem__, edges.before[start:end])
            waits = frozenset(zip(before, edges.conditions[start:end], strict=True))
        kind, level, undoes = nodes.kind_of[task], levels[task], task in nodes.undoing
        key = (kind, level, undoes, detail(task, waits))
        group = by_key.get(key)
        if group is None:
            group = by_key[key] = TaskGroup(len(by_key), nodes.kinds[kind], level, undoes)
        group.tasks.append(task)
        group.parents.update(sorted(waits))
        group_of[task] = group.number
    groups = list(by_key.values())
    for undo, undone in nodes.undoing.items():
        if undone is not None:
            groups[group_of[undo]].undoes.add(group_of[undone])
    return groups


def _critical_path(nodes: Nodes, edges: _Edges) -> list[int]:
    """Return the chain of tasks that decided when the workflow ended: before each task, its last parent to end.

    Compensations do not belong to it.
    """
    ended = [-math.inf if math.inf in times else times[1] for times in zip(nodes.started, nodes.finished, strict=True)]
    for task in nodes.undoing:
        ended[task] = -math.inf
    path: list[int] = []
    before: Sequence[int] = range(len(ended))
    while before and ended[last := max(before, key=ended.__getitem__)] > -math.inf:
        path.append(last)
        before = edges.parents(last)
    return path[::-1]


def holding_tasks() -> Q:
    """Return the condition on tasks that failed in a workflow that is held."""
    return Q(workflow_id__in=Workflow.objects.filter(**STANDINGS["held"]).values("pk"), status__in=FAILURES)


# Keep workflows going after crashes: settle open ones, sweep for forgotten tasks, cancel overdue ones.
#
# The scheduler calls this; every part is bounded and safe to run twice at once.

#: Open workflows that one run settles, and blocked tasks that it looks at.
FLOWS: Final = 200
TASKS: Final = 500
#: Counter of blocked tasks that the sweep had to queue; it stays 0.
MENDED: Final = "repair:forgotten_tasks"


class WorkflowUpkeep:
    """Goes through open workflows and blocked tasks, a part in each run."""

    def __init__(self) -> None:
        self._flow = uuid.UUID(int=0)
        self._task = uuid.UUID(int=0)

    def run_once(self) -> int:
        """Handle the next part; return how many tasks were forgotten."""
        cancel_overdue()
        self._settle()
        return self._sweep()

    def _settle(self) -> None:
        page = settle_rows.page_of_open(self._flow, FLOWS)
        self._flow = page[-1][0] if len(page) == FLOWS else uuid.UUID(int=0)
        settle_all(workflow_id for workflow_id, is_wanted in page if is_wanted)

    def _sweep(self) -> int:
        page = settle_rows.page_of_blocked(self._task, TASKS)
        self._task = page[-1][0] if len(page) == TASKS else uuid.UUID(int=0)
        ready = [task_id for task_id, _, is_ready in page if is_ready]
        return mend(ready) if ready else 0


def mend(ids: list[uuid.UUID]) -> int:
    """Queue blocked tasks whose parents have all ended, if that is still so; return how many."""
    with changing(ids, alone=True):
        mended = push_opened(go_on([(task_id, 0, 0) for task_id in settle_rows.still_ready(ids)]))
    if mended:
        events.count({MENDED: mended})
    return mended


def cancel_overdue() -> int:
    """Cancel the workflows whose deadline has passed; return how many."""
    overdue = Workflow.objects.using(alias()).filter(
        finished_at=None, deadline__lte=Now(), cancel_requested_at=None, state="running"
    )
    done = 0
    for workflow_id in list(overdue.values_list("id", flat=True)[:FLOWS]):
        try:
            cancel_workflow(workflow_id, via="", reason="its deadline has passed")
        except (InvalidTransition, WorkflowNotFound):  # it ended meanwhile
            continue
        done += 1
    return done
