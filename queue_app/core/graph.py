"""The graph of a workflow before it is stored, and what is wrong with it."""

from __future__ import annotations

import uuid
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final, NamedTuple

from queue_app.core.payload import Reference
from queue_app.core.records import TaskRow
from queue_app.exceptions import InvalidWorkflow

#: Maximum number of tasks that one counter counts; a task that waits for more has several.
SHARD_SIZE: Final = 1000


class Edge(NamedTuple):
    """``after`` waits for ``before``; ``condition`` is a value of ``models.workflow.Condition``."""

    after: uuid.UUID
    before: uuid.UUID
    condition: str
    shard: int = 0


#: Edges, and the counters of tasks that wait for more than one other: (task, shard, remaining).
type Sharded = tuple[list[Edge], list[tuple[uuid.UUID, int, int]]]


class NodeExtra(NamedTuple):
    """What only some nodes have; see ``models.WorkflowNode``."""

    name: str = ""
    compensation: str | None = None  # JSON text
    compensates: uuid.UUID | None = None
    added_by: uuid.UUID | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class NewWorkflow:
    """A checked workflow."""

    id: uuid.UUID
    name: str
    user: str = ""
    on_failure: str = "hold"
    deadline: datetime | None = None
    max_concurrent: int | None = None


@dataclass(slots=True)
class Graph:
    """Checked tasks, and which of them wait for which."""

    rows: list[TaskRow] = field(default_factory=list)
    edges: dict[tuple[uuid.UUID, uuid.UUID], str] = field(default_factory=dict)  # (after, before): condition
    extras: dict[uuid.UUID, NodeExtra] = field(default_factory=dict)
    references: list[tuple[uuid.UUID, Reference]] = field(default_factory=list)  # (task, what it refers to)

    @property
    def parents(self) -> dict[uuid.UUID, list[uuid.UUID]]:
        """Return {task: what it waits for}."""
        found: dict[uuid.UUID, list[uuid.UUID]] = defaultdict(list)
        for after, before in self.edges:
            found[after].append(before)
        return found


def ends_of(graph: Graph) -> list[uuid.UUID]:
    """Return the last tasks, for which what waits for a whole graph waits: without those that run after a failure only.

    Tasks come after those that they wait for.
    """
    rare: set[uuid.UUID] = set()  # run only after a failure
    for (after, before), condition in graph.edges.items():
        if condition == "failure" or (before in rare and condition != "continue"):
            rare.add(after)
    followed = {before for after, before in graph.edges if after not in rare}
    return [row.id for row in graph.rows if row.id not in rare and row.id not in followed]


def sharded(edges: Mapping[tuple[uuid.UUID, uuid.UUID], str]) -> Sharded:
    """Return the edges with their shards, and the counters.

    A task that waits for one other needs no counter.
    """
    by_task: dict[uuid.UUID, list[tuple[uuid.UUID, str]]] = defaultdict(list)
    for (after, before), condition in edges.items():
        by_task[after].append((before, condition))
    found: list[Edge] = []
    counters: list[tuple[uuid.UUID, int, int]] = []
    for after, parents in by_task.items():
        if len(parents) <= SHARD_SIZE:
            found += [Edge(after, before, condition) for before, condition in parents]
            if len(parents) > 1:
                counters.append((after, 0, len(parents)))
            continue
        parts = [parents[start : start + SHARD_SIZE] for start in range(0, len(parents), SHARD_SIZE)]
        counters.append((after, 0, len(parts)))
        for shard, part in enumerate(parts, 1):
            counters.append((after, shard, len(part)))
            found += [Edge(after, before, condition, shard) for before, condition in part]
    return found, counters


def check_size(nodes: int, edges: int, *, max_nodes: int, max_edges: int) -> None:
    """Raise ``InvalidWorkflow`` for a graph that is empty or too large."""
    if not nodes:
        raise InvalidWorkflow("nodes", "The workflow has no tasks; add one before you enqueue it.")
    for what, count, most in (("tasks", nodes, max_nodes), ("dependencies", edges, max_edges)):
        if count > most:
            raise InvalidWorkflow(
                "nodes",
                f"The workflow has {count} {what}; the limit is {most} (TASKQUEUE WORKFLOWS). Enqueue it in parts.",
                limit=most,
            )


def check_references(graph: Graph, names: Mapping[uuid.UUID, str]) -> None:
    """Raise ``InvalidWorkflow`` if a task refers to the result of a task that it does not wait for."""
    parents = graph.parents
    for task_id, reference in graph.references:
        missing = set(reference.ids)
        seen: set[uuid.UUID] = set()
        ahead = list(parents.get(task_id, ()))
        while ahead and missing:
            before = ahead.pop()
            if before in seen:
                continue
            seen.add(before)
            missing.discard(before)
            if missing:
                ahead.extend(parents.get(before, ()))
        if missing:
            other = names.get(next(iter(missing)), "another task")
            raise InvalidWorkflow(
                "parameters",
                f"{names.get(task_id, 'A task')} takes the result of {other}, but does not wait for it; add it to"
                " `after`.",
            )


def in_order(names: Iterable[str], after: Mapping[str, Sequence[Any]]) -> list[str]:
    """Return names so that each comes after its dependencies; raise ``InvalidWorkflow`` for a cycle, and name it."""
    done: dict[str, bool] = {}  # False: on the present path
    ordered: list[str] = []
    for start in names:
        path = [(start, iter(after.get(start, ())))] if start not in done else []
        if path:
            done[start] = False
        while path:
            name, rest = path[-1]
            for before in rest:
                if done.get(before) is False:
                    cycle = [each for each, _ in path]
                    cycle = [*cycle[cycle.index(before) :], before]
                    raise InvalidWorkflow("after", f"These tasks wait for one another: {' -> '.join(cycle)}.")
                if before not in done:
                    done[before] = False
                    path.append((before, iter(after.get(before, ()))))
                    break
            else:
                done[name] = True
                ordered.append(name)
                path.pop()
    return ordered


# Nodes of workflows, and what other tasks wait for.


@dataclass(frozen=True, slots=True)
class Wait:
    """What a task waits for, and on which condition."""

    ids: tuple[uuid.UUID, ...]
    condition: str


@dataclass(frozen=True, slots=True)
class Node:
    """A task of a workflow, or several that other tasks wait for together (``ids``)."""

    ids: tuple[uuid.UUID, ...]
    name: str
    result: Reference = field(repr=False)

    @property
    def id(self) -> uuid.UUID:
        """The id of the task."""
        return self.ids[0]

    @property
    def if_failed(self) -> Wait:
        """For ``after``: run only if this task fails."""
        return Wait(self.ids, "failure")

    @property
    def even_if_failed(self) -> Wait:
        """For ``after``: run once this task has ended, however it ended."""
        return Wait(self.ids, "continue")

    @property
    def or_cancel(self) -> Wait:
        """For ``after``: be cancelled if this task fails."""
        return Wait(self.ids, "cancel")


type After = Node | Wait | uuid.UUID | Iterable[Node | Wait | uuid.UUID]


def waits_of(after: Any, condition: str) -> list[Wait]:
    """Return what ``after`` names; raise ``InvalidWorkflow`` for anything else."""
    if isinstance(after, Node | Wait | uuid.UUID):
        after = [after]
    if isinstance(after, str) or not isinstance(after, Iterable):
        raise InvalidWorkflow("after", f"after must be a list of nodes, which add() returns, not {after!r:.60}.")
    found: list[Wait] = []
    for each in after:
        if isinstance(each, Wait):
            found.append(each)
        elif isinstance(each, Node):
            found.append(Wait(each.ids, condition))
        elif isinstance(each, uuid.UUID):
            found.append(Wait((each,), condition))
        else:
            raise InvalidWorkflow("after", f"after must be a list of nodes, which add() returns; it has {each!r:.60}.")
    return found
