"""Store workflows, and add tasks to running ones.

Crash points: before the commit nothing exists; between the commit and the push the first tasks are queued but not
indexed, and the reconciler pushes them.
"""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from functools import partial
from typing import Any

from queue_app import conf, tracing
from queue_app.core import trace
from queue_app.core.graph import SHARD_SIZE, Edge, Graph, NewWorkflow, NodeExtra, check_size, sharded
from queue_app.core.records import AttemptKey, Enqueued, TaskSpec, call_options
from queue_app.core.references import Reference, marked
from queue_app.core.signatures import check_arguments
from queue_app.core.states import TERMINAL, Status, predicate
from queue_app.exceptions import AttemptOver, InvalidWorkflow, WorkflowNotFound, WrongArguments
from queue_app.hooks import before_enqueue
from queue_app.models import DependencyCounter, TaskDependency, Workflow
from queue_app.models.columns import USER_LENGTH
from queue_app.models.limit_columns import MAX_CAP
from queue_app.models.workflow import WORKFLOW_NAME_LENGTH, Condition, WorkflowState
from queue_app.registry import AnyTask
from queue_app.services.enqueue.store import announce, ensure_queues, store_rows
from queue_app.services.enqueue.validate import check_aware, check_integer, check_text
from queue_app.sql import workflow_advance, workflow_settle
from queue_app.sql import workflow_store as rows
from queue_app.sql.database import alias, atomic, clock
from queue_app.sql.insert import LimitApplies, clock_and_limits
from queue_app.sql.workflow_store import compensation_text


def check_workflow(
    flow: NewWorkflow, deadline: datetime | timedelta | None, now: Callable[[], datetime] = clock
) -> NewWorkflow:
    """Return a workflow whose options may be stored; raise ``InvalidTaskData``."""
    check_text(flow.name, "name", WORKFLOW_NAME_LENGTH)
    check_text(flow.user, "user", USER_LENGTH, allow_blank=True)
    if flow.max_concurrent is not None:
        check_integer(flow.max_concurrent, "max_concurrent", 1, MAX_CAP)
    if isinstance(deadline, timedelta):
        try:
            deadline = now() + deadline
        except OverflowError:
            raise InvalidWorkflow("deadline", "deadline must lie before the year 10000.") from None
    if deadline is not None and check_aware(deadline, "deadline") <= now():
        raise InvalidWorkflow("deadline", "deadline must be in the future.")
    return replace(flow, deadline=deadline)


def enqueue_workflow(flow: NewWorkflow, graph: Graph, *, outside: bool = False) -> list[Enqueued]:
    """Store a checked workflow with all its tasks, or nothing; return the tasks in order.

    All its tasks belong to the caller's trace; without one, the workflow begins a trace, whose id is its own.

    Raises ``InvalidWorkflow`` if it is empty or too large, ``QueueFull`` and ``UserLimitExceeded``.
    """
    limits = conf.get().workflows
    check_size(len(graph.rows), len(graph.edges), max_nodes=limits.max_tasks, max_edges=limits.max_dependencies)
    graph.rows[:] = map(before_enqueue, graph.rows)
    with tracing.enqueueing(graph.rows), trace.use(tracing.of_caller() or trace.of_task(flow.id)):
        queues = ensure_queues(graph.rows)
        stored = store_rows(graph.rows, partial(_write, flow, graph), outside=outside)
        announce(stored, queues)
    return stored


def _write(flow: NewWorkflow, graph: Graph, *, admitted: bool = False) -> list[Enqueued]:
    waits = sharded(graph.edges)
    with atomic():
        at, is_limited = clock_and_limits(graph.rows)
        if is_limited and not admitted:
            raise LimitApplies
        rows.insert_workflow(flow, len(graph.rows), at)
        blocked = {after: False for after, _before in graph.edges}
        if flow.max_concurrent is not None:
            ready = [row.id for row in graph.rows if row.id not in blocked]
            blocked |= dict.fromkeys(ready[flow.max_concurrent :], True)
        return rows.insert_graph(graph, flow.id, blocked, at, waits)


def add_nodes(
    workflow_id: uuid.UUID, graph: Graph, *, added_by: AttemptKey | None = None, joined: bool = True
) -> list[Enqueued]:
    """Add tasks to a workflow that has not ended; return them.

    Tasks that a running attempt adds (``added_by``) wait for it to complete, and are deleted if it does not. With
    ``joined``, tasks that wait for that task wait for the added ones too. Raises ``WorkflowNotFound``,
    ``InvalidWorkflow`` for a task that is not of this workflow or a workflow that has ended, and ``AttemptOver`` if the
    attempt has ended.

    Attempts that add tasks behind themselves alone do so at the same time. If a thread that outlives its function adds
    tasks while the attempt completes, the sweep (``services.workflows.upkeep``) may have to queue them.
    """
    graph.rows[:] = map(before_enqueue, graph.rows)
    with atomic():
        if added_by is not None and _is_local(graph, added_by[0]):
            workflow_advance.share([workflow_id])
        else:
            workflow_advance.lock([workflow_id])
        flow = Workflow.objects.using(alias()).filter(pk=workflow_id).first()
        if flow is None:
            raise WorkflowNotFound(f"There is no workflow {workflow_id}.")
        if flow.finished_at is not None or flow.cancel_requested_at is not None:
            raise InvalidWorkflow("workflow", f"The workflow {flow.name} has ended; tasks cannot be added to it.")
        if flow.state == WorkflowState.COMPENSATING:
            raise InvalidWorkflow("workflow", f"The workflow {flow.name} is being undone; context.run() starts others.")
        limits = conf.get().workflows
        check_size(len(graph.rows), len(graph.edges), max_nodes=limits.max_tasks, max_edges=limits.max_dependencies)
        if added_by is not None:
            _come_after(graph, added_by)
        own = {row.id for row in graph.rows}
        completed = _completed(workflow_id, {before for _, before in graph.edges} - own, graph.edges)
        joins = _joins(added_by[0], graph) if added_by is not None and joined else {}
        stored = _write_nodes(flow, graph, completed)
        more = _join(joins)
        total = rows.add_size(flow.id, len(graph.rows))  # this and the counters last: other attempts wait for them
        check_size(total, 0, max_nodes=limits.max_tasks, max_edges=limits.max_dependencies)
        if more:
            workflow_settle.raise_counters(more)
    return stored


def _is_local(graph: Graph, task_id: uuid.UUID) -> bool:
    """Return whether the tasks come after one task and each other only, and need one counter at most."""
    known = {row.id for row in graph.rows} | {task_id}
    return len(graph.rows) <= SHARD_SIZE and all(before in known for _, before in graph.edges)


def _come_after(graph: Graph, added_by: AttemptKey) -> None:
    """Let every added task wait for the task that adds it; raise ``AttemptOver`` unless the attempt still runs."""
    task_id = added_by[0]
    if not workflow_settle.is_held(added_by):
        raise AttemptOver("The attempt no longer holds its task, so it cannot add tasks to the workflow.")
    for row in graph.rows:
        graph.edges.setdefault((row.id, task_id), Condition.HOLD.value)
        extra = graph.extras.get(row.id, NodeExtra())
        graph.extras[row.id] = extra._replace(added_by=task_id)


def _completed(
    workflow_id: uuid.UUID, existing: set[uuid.UUID], edges: Mapping[tuple[uuid.UUID, uuid.UUID], str]
) -> set[uuid.UUID]:
    """Return those of the existing tasks that have completed; raise ``InvalidWorkflow`` for one to wait for in vain."""
    if not existing:
        return set()
    found = workflow_settle.statuses_in(workflow_id, existing)
    for (_, before), condition in edges.items():
        if before not in existing:
            continue
        if before not in found:
            raise InvalidWorkflow("after", f"The task {before} is not in this workflow; wait for one that is.")
        status = found[before]
        if status in TERMINAL and (status is Status.COMPLETED) == (condition == Condition.FAILURE):
            raise InvalidWorkflow("after", f"The task {before} {predicate(status)}; nothing can wait for it any more.")
    return {task_id for task_id, status in found.items() if status is Status.COMPLETED}


def _write_nodes(flow: Workflow, graph: Graph, completed: set[uuid.UUID]) -> list[Enqueued]:
    """Store the tasks and their edges; edges from completed tasks are not counted."""
    at: datetime = clock()
    queues = ensure_queues(graph.rows)
    open_edges = {pair: condition for pair, condition in graph.edges.items() if pair[1] not in completed}
    edges, counters = sharded(open_edges)
    edges += [Edge(after, before, graph.edges[after, before]) for after, before in graph.edges.keys() - open_edges]
    blocked = {after: False for after, _before in open_edges}
    if flow.paused or flow.max_concurrent is not None:
        blocked |= {row.id: True for row in graph.rows if row.id not in blocked}
    stored = rows.insert_graph(graph, flow.id, blocked, at, (edges, counters))
    announce(stored, queues)
    return stored


def _joins(task_id: uuid.UUID, graph: Graph) -> dict[uuid.UUID, list[tuple[uuid.UUID, str]]]:
    """Return {task that waits for this one: the (added task, condition) pairs that it must wait for too}.

    These are the added tasks that no other added task waits for.
    """
    inner = {before for _, before in graph.edges}
    last = [row.id for row in graph.rows if row.id not in inner]
    waiting = TaskDependency.objects.using(alias()).filter(before_id=task_id, met=False)
    waiting = waiting.exclude(condition=Condition.FAILURE).exclude(after__node__added_by=task_id)
    return {edge.after_id: [(added, edge.condition) for added in last] for edge in waiting}


def _join(joins: Mapping[uuid.UUID, list[tuple[uuid.UUID, str]]]) -> dict[uuid.UUID, int]:
    """Let tasks wait for more; return by how much their first counters must rise.

    A task without a counter waits for one task, and now gets a counter.
    """
    if not joins:
        return {}
    roots = dict(
        DependencyCounter.objects.using(alias()).filter(task_id__in=joins, shard=0).values_list("task_id", "remaining")
    )
    many = [after for after, added in joins.items() if len(added) > SHARD_SIZE]
    last_shards = workflow_settle.last_shards(many) if many else {}
    edges: list[Edge] = []
    counters: list[tuple[uuid.UUID, int, int]] = []
    more: Counter[uuid.UUID] = Counter()
    for after, added in joins.items():
        if len(added) <= SHARD_SIZE:
            edges += [Edge(after, before, condition) for before, condition in added]
            more[after] = len(added)
            continue
        for number, start in enumerate(range(0, len(added), SHARD_SIZE), last_shards.get(after, 0) + 1):
            part = added[start : start + SHARD_SIZE]
            edges += [Edge(after, before, condition, number) for before, condition in part]
            counters.append((after, number, len(part)))
            more[after] += 1
    counters += [(after, 0, 1 + n) for after, n in more.items() if after not in roots]
    rows.insert_edges(edges, counters)
    return {after: n for after, n in more.items() if after in roots}


def undoing(task: AnyTask, spec: TaskSpec, args: Sequence[Any], kwargs: Mapping[str, Any], result: Reference) -> str:
    """Return the call of a compensation: with the arguments of what it undoes, and its result if it takes one.

    Raises ``WrongArguments``.
    """
    try:
        check_arguments(task, args, {**kwargs, "result": result})
        kwargs = {**kwargs, "result": result}
    except WrongArguments:
        check_arguments(task, args, kwargs)
    found: list[Reference] = []
    call = {"args": marked(list(args), found), "parameters": marked(dict(kwargs), found)}
    return compensation_text(call_options(spec) | call)
