"""A workflow as a picture needs it: tasks that are alike folded into groups, the critical path, and what holds it.

Tasks of one type that wait for the same groups form a group, so a thousand ``resize`` are one box. Small workflows are
not folded. The cost grows with the number of tasks and edges, each of which is read once.
"""

from __future__ import annotations

import uuid
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final

from queue_app.sql import workflow_graph as rows
from queue_app.sql import workflow_health
from queue_app.sql.workflow_graph import Node

#: Workflows of at most this many tasks are shown task by task.
UNFOLDED: Final = 40
#: Above this number of groups, tasks of one type are also folded if they wait for different groups.
MAX_GROUPS: Final = 200
#: Tasks named as holding the workflow.
MAX_HOLDING: Final = 20

type Parents = Mapping[uuid.UUID, Sequence[tuple[uuid.UUID, str]]]


@dataclass(slots=True)
class Group:
    """Tasks of one type that wait for the same groups; often one task."""

    number: int
    task_type: str
    level: int  # the longest way from a task that waits for none
    is_compensation: bool
    tasks: list[Node] = field(default_factory=list)
    parents: dict[int, str] = field(default_factory=dict)  # {group: condition}
    is_critical: bool = False  # a task of it is on the critical path

    @property
    def name(self) -> str:
        """The name of a single task if it has one, else the name of the function."""
        only = self.tasks[0].name if len(self.tasks) == 1 else ""
        return only or self.task_type.rpartition(".")[2]

    @property
    def counts(self) -> Counter[str]:
        """The number of tasks by state."""
        return Counter(task.status for task in self.tasks)

    @property
    def started_at(self) -> datetime | None:
        """When the first of them started."""
        return min((task.started_at for task in self.tasks if task.started_at), default=None)

    @property
    def finished_at(self) -> datetime | None:
        """When the last of them ended; none while one is pending."""
        ends = [task.finished_at for task in self.tasks]
        return None if None in ends else max(end for end in ends if end)


@dataclass(frozen=True, slots=True)
class WorkflowGraph:
    """The groups in an order in which each follows what it waits for."""

    groups: list[Group]
    critical: list[Node]  # the critical path: each task waited for the one before it
    holding: list[Node]  # tasks that ended without success, and hold the workflow
    tasks: int
    edges: int


def graph_of(workflow_id: uuid.UUID) -> WorkflowGraph:
    """Return the graph of a workflow as it is now."""
    nodes = {node.id: node for node in rows.nodes(workflow_id)}
    parents: defaultdict[uuid.UUID, list[tuple[uuid.UUID, str]]] = defaultdict(list)
    children: defaultdict[uuid.UUID, list[uuid.UUID]] = defaultdict(list)
    count = 0
    for after, before, condition in rows.edges(workflow_id):
        if before in nodes:  # else its retention has deleted it
            parents[after].append((before, condition))
            children[before].append(after)
            count += 1
    levels = _levels(nodes, parents, children)
    groups = _folded(nodes, parents, levels)
    path = _critical_path(nodes, parents)
    on_path = {node.id for node in path}
    for group in groups:
        group.is_critical = any(task.id in on_path for task in group.tasks)
    holding = [nodes[task_id] for task_id in workflow_health.holding(workflow_id, MAX_HOLDING) if task_id in nodes]
    return WorkflowGraph(groups, path, holding, len(nodes), count)


def _levels(
    nodes: Mapping[uuid.UUID, Node], parents: Parents, children: Mapping[uuid.UUID, Sequence[uuid.UUID]]
) -> dict[uuid.UUID, int]:
    """Return {task: level}, in an order in which each task follows what it waits for."""
    left = {task_id: len(parents.get(task_id, ())) for task_id in nodes}
    levels = dict.fromkeys((task_id for task_id, number in left.items() if not number), 0)
    ready = deque(levels)
    while ready:
        task_id = ready.popleft()
        for child in children.get(task_id, ()):
            left[child] -= 1
            if not left[child]:
                levels[child] = 1 + max(levels[before] for before, _ in parents[child])
                ready.append(child)
    return levels


def _folded(nodes: Mapping[uuid.UUID, Node], parents: Parents, levels: Mapping[uuid.UUID, int]) -> list[Group]:
    if len(nodes) <= UNFOLDED:
        return _groups(nodes, parents, levels, lambda node, _waits: node.id)
    found = _groups(nodes, parents, levels, lambda _node, waits: waits)
    if len(found) <= MAX_GROUPS:
        return found
    return _groups(nodes, parents, levels, lambda _node, _waits: None)


def _groups(
    nodes: Mapping[uuid.UUID, Node],
    parents: Parents,
    levels: Mapping[uuid.UUID, int],
    detail: Callable[[Node, frozenset[tuple[int, str]]], Hashable],
) -> list[Group]:
    """Fold tasks of one type and level that share ``detail(node, parents' groups)``."""
    by_key: dict[Hashable, Group] = {}
    group_of: dict[uuid.UUID, Group] = {}
    for task_id in sorted(levels, key=levels.__getitem__):
        node, level = nodes[task_id], levels[task_id]
        waits = {group_of[before].number: condition for before, condition in parents.get(task_id, ())}
        undoes = node.compensates is not None
        key = (node.task_type, level, undoes, detail(node, frozenset(waits.items())))
        group = by_key.get(key)
        if group is None:
            group = by_key[key] = Group(len(by_key), node.task_type, level, undoes)
        group.tasks.append(node)
        group.parents.update(waits)
        group_of[task_id] = group
    return list(by_key.values())


def _critical_path(nodes: Mapping[uuid.UUID, Node], parents: Parents) -> list[Node]:
    """Return the tasks that decided when the last one ended: of those that a task waited for, the last to end."""
    ended = [node for node in nodes.values() if node.finished_at and node.started_at]
    if not ended:
        return []
    node = max(ended, key=lambda each: each.finished_at or datetime.min)  # noqa: DTZ901 - never compared
    path = [node]
    while True:
        before = [nodes[parent] for parent, _ in parents.get(node.id, ())]
        before = [each for each in before if each.finished_at and each.started_at]
        if not before:
            return path[::-1]
        node = max(before, key=lambda each: each.finished_at or datetime.min)  # noqa: DTZ901
        path.append(node)
