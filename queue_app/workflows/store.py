"""Store workflows, and add tasks to running ones.

Crash points: before the commit nothing exists; between the commit and the push the first tasks are queued but not
indexed, and the reconciler pushes them.
"""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from functools import partial
from typing import Any

from queue_app import codecs, conf, registry
from queue_app.core import trace
from queue_app.core.graph import (
    SHARD_SIZE,
    Edge,
    Graph,
    NewWorkflow,
    NodeExtra,
    check_references,
    check_size,
    in_order,
    sharded,
)
from queue_app.core.ids import uuid7
from queue_app.core.payload import MANY, ONE, Reference, marked
from queue_app.core.records import AttemptKey, Enqueued, NewTask, TaskSpec, call_options
from queue_app.core.signatures import check_arguments
from queue_app.core.states import TERMINAL, Status, predicate
from queue_app.encryption import applies_to
from queue_app.exceptions import (
    AttemptOver,
    InvalidTaskData,
    InvalidWorkflow,
    WorkflowNotFound,
    WrongArguments,
    suggestion,
)
from queue_app.hooks import before_enqueue
from queue_app.models import DependencyCounter, TaskDependency, Workflow
from queue_app.models.fields import NAME_LENGTH, USER_LENGTH
from queue_app.models.limits import MAX_CAP
from queue_app.models.workflow import WORKFLOW_NAME_LENGTH, Condition, OnFailure, WorkflowState
from queue_app.registry import AnyTask
from queue_app.services.enqueue.store import announce, ensure_queues, store_rows
from queue_app.services.enqueue.validate import (
    check_aware,
    check_call,
    check_integer,
    check_spec,
    check_task_type,
    check_text,
)
from queue_app.services.lifecycle.results import filled_in
from queue_app.sql import workflow_advance, workflow_settle, workflow_store as rows
from queue_app.sql.database import alias, atomic, clock
from queue_app.sql.insert import LimitApplies, clock_and_limits
from queue_app.sql.workflow_store import compensation_text
from queue_app.telemetry import tracing
from queue_app.workflows import steer


def check_workflow(flow: NewWorkflow, deadline: datetime | timedelta | None) -> NewWorkflow:
    """Return a workflow whose options may be stored; raise ``InvalidTaskData``."""
    check_text(flow.name, "name", WORKFLOW_NAME_LENGTH)
    check_text(flow.user, "user", USER_LENGTH, allow_blank=True)
    if flow.max_concurrent is not None:
        check_integer(flow.max_concurrent, "max_concurrent", 1, MAX_CAP)
    if isinstance(deadline, timedelta):
        try:
            deadline = clock() + deadline
        except OverflowError:
            raise InvalidWorkflow("deadline", "deadline must lie before the year 10000.") from None
    if deadline is not None and check_aware(deadline, "deadline") <= clock():
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


def enqueue_checked(flow: NewWorkflow, graph: Graph, deadline: datetime | timedelta | None) -> None:
    """Store a workflow of code; raise as ``Workflow.enqueue`` does."""
    enqueue_workflow(check_workflow(flow, deadline), graph)


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
    tasks while the attempt completes, the sweep (``workflows.read``) may have to queue them.
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


# A stored workflow as the backend gives it to its handle.


class StoredWorkflow:
    """Reads the rows of a workflow, and calls the services on it."""

    def __init__(self, workflow_id: uuid.UUID) -> None:
        self.id = workflow_id
        self.cancel: Callable[..., int] = partial(steer.cancel_workflow, workflow_id)
        self.pause: Callable[..., int] = partial(steer.pause_workflow, workflow_id)
        self.resume: Callable[..., int] = partial(steer.resume_workflow, workflow_id)
        self.retry: Callable[..., int] = partial(steer.retry_workflow, workflow_id)
        self.stop_undoing: Callable[..., int] = partial(steer.stop_undoing, workflow_id)

    @property
    def row(self) -> Workflow:
        """The row; raises ``WorkflowNotFound``."""
        found: Workflow | None = Workflow.objects.using(alias()).filter(pk=self.id).first()
        if found is None:
            raise WorkflowNotFound(f"There is no workflow {self.id}.")
        return found

    @property
    def state(self) -> WorkflowState:
        """Its state."""
        return WorkflowState(self.row.state)

    @property
    def has_ended(self) -> bool:
        """Whether nothing more happens, unless it is retried."""
        return self.row.finished_at is not None

    @property
    def gaps(self) -> list[str]:
        """Names of the completed tasks that stay as they are."""
        return [gap["name"] for gap in self.row.gaps]

    def filled(self, reference: Any) -> Any:
        """Return what a stored reference stands for."""
        return codecs.real_result(filled_in(self.id, [reference], {})[0][0])


# Submit workflows as JSON, by the names of task types: for the API and the command line.
#
# A task names what it waits for by the names of other tasks, and refers to their results in its arguments by
# ``{"$result": "name"}``, with ``"path": ["key", 0]`` for a part of one.


@dataclass(frozen=True, slots=True, kw_only=True)
class NewNode:
    """An unchecked task of a workflow; ``after`` holds names, or {name: condition}."""

    name: str
    task: NewTask
    after: Sequence[str] | Mapping[str, str] = ()
    compensate: str = ""  # the task type that undoes it


@dataclass(frozen=True, slots=True, kw_only=True)
class NewFlow:
    """An unchecked workflow."""

    name: str
    nodes: Sequence[NewNode] = field(default_factory=list)
    user: str = ""
    on_failure: str = "hold"
    deadline: datetime | None = None
    max_concurrent: int | None = None


def submit_workflow(new: NewFlow) -> tuple[uuid.UUID, dict[str, Enqueued]]:
    """Store a workflow, or nothing; return its id and its tasks by name.

    Raises ``InvalidWorkflow`` for a cycle, an unknown or repeated name, or a result of a task that is not waited for,
    ``InvalidTaskData`` for a task that must not be stored, ``QueueFull`` and ``UserLimitExceeded``.
    """
    if new.on_failure not in set(OnFailure):
        raise InvalidWorkflow("on_failure", f"on_failure must be one of {', '.join(OnFailure)}.")
    flow = NewWorkflow(
        id=uuid7(), name=new.name, user=new.user, on_failure=new.on_failure, max_concurrent=new.max_concurrent
    )
    flow = check_workflow(flow, new.deadline)
    limits = conf.get().workflows
    edges = sum(len(node.after) for node in new.nodes)
    check_size(len(new.nodes), edges, max_nodes=limits.max_tasks, max_edges=limits.max_dependencies)
    nodes = _by_name(new.nodes)
    waits = {name: _conditions(node, nodes, new.on_failure) for name, node in nodes.items()}
    graph, ids = Graph(), dict[str, uuid.UUID]()
    for name in in_order(nodes, {name: list(before) for name, before in waits.items()}):
        try:
            ids[name] = _add(graph, nodes[name], ids, waits[name], new.user)
        except InvalidTaskData as error:
            error.field = f"tasks[{name}].{error.field}"
            raise
    check_references(graph, {task_id: name for name, task_id in ids.items()})
    types = {row.id: row.spec.task_type for row in graph.rows}
    for task_id, reference in graph.references:
        for given in reference.ids:
            _check_readable(types[given], types[task_id], "parameters")
    stored = {item.id: item for item in enqueue_workflow(flow, graph, outside=True)}
    return flow.id, {name: stored[task_id] for name, task_id in ids.items()}


def _check_readable(source: str, reader: str, field: str) -> None:
    """Raise ``InvalidWorkflow`` if data of an encrypted task would be stored, and shown, with one that is not."""
    if applies_to(source) and not applies_to(reader):
        text = f"{source} is encrypted and {reader} is not, so a caller cannot pass data of the one to the other."
        raise InvalidWorkflow(field, text, code="encrypted")


def _by_name(nodes: Sequence[NewNode]) -> dict[str, NewNode]:
    found: dict[str, NewNode] = {}
    for node in nodes:
        if check_text(node.name, "name", NAME_LENGTH) in found:
            raise InvalidWorkflow("tasks", f"Two tasks are named {node.name!r}; give each its own name.")
        found[node.name] = node
    return found


def _conditions(node: NewNode, nodes: Mapping[str, NewNode], on_failure: str) -> dict[str, str]:
    """Return {name of what a task waits for: condition}."""
    after = node.after if isinstance(node.after, Mapping) else dict.fromkeys(node.after, on_failure)
    for name, condition in after.items():
        if name not in nodes:
            hint = suggestion(name, nodes)
            raise InvalidWorkflow("after", f"{node.name!r} waits for {name!r}, which is not in the workflow.{hint}")
        if condition not in set(Condition):
            raise InvalidWorkflow("after", f"{condition!r:.40} is no condition; use one of {', '.join(Condition)}.")
    return dict(after)


def _add(graph: Graph, node: NewNode, ids: Mapping[str, uuid.UUID], waits: Mapping[str, str], user: str) -> uuid.UUID:
    new = node.task
    registered = registry.get_for_caller(check_task_type(new.task_type))
    if new.options.get("idempotency_key") is not None:
        raise InvalidWorkflow("idempotency_key", "A task of a workflow cannot have an idempotency key; leave it out.")
    spec = _spec_of(new, user)
    found: list[Reference] = []
    given = _referring(list(new.args), ids), _referring(new.parameters, ids)
    args, parameters = (marked(value, found) for value in given)
    check_arguments(registered, args, parameters)
    row = check_call(spec, args, parameters)
    graph.rows.append(row)
    graph.extras[row.id] = NodeExtra(node.name, _undoing(node, user, *given, row.id))
    graph.edges |= {(row.id, ids[name]): condition for name, condition in waits.items()}
    graph.references += [(row.id, reference) for reference in found]
    return row.id


def _spec_of(new: NewTask, user: str) -> TaskSpec:
    spec = check_spec(new if new.user else new.of(user), registry.find(new.task_type))
    if spec.unique is not None:
        raise InvalidWorkflow("task_type", "A unique task cannot be part of a workflow.")
    return spec


def _undoing(node: NewNode, user: str, args: Any, parameters: Any, task_id: uuid.UUID) -> str | None:
    """Return the call that undoes a task, as it is stored."""
    if not node.compensate:
        return None
    try:
        task = registry.get_for_caller(check_task_type(node.compensate))
        _check_readable(node.task.task_type, node.compensate, "compensate")
        spec = _spec_of(NewTask(task_type=node.compensate), user or node.task.user)
        return undoing(task, spec, args, parameters, Reference(ONE, (task_id,)))
    except InvalidTaskData as error:
        error.field = "compensate"
        raise


def _referring(value: Any, ids: Mapping[str, uuid.UUID]) -> Any:
    """Return arguments with references in the places of the objects that name tasks."""
    if isinstance(value, list):
        return [_referring(item, ids) for item in value]
    if not isinstance(value, dict):
        return value
    kind = next((kind for kind in (ONE, MANY) if kind in value), None)
    if kind is None:
        return {key: _referring(item, ids) for key, item in value.items()}
    names = value[kind] if kind == MANY else [value[kind]]
    path = value.get("path", [])
    if not (isinstance(names, list) and isinstance(path, list) and value.keys() <= {kind, "path"}):
        raise InvalidWorkflow("parameters", f'A reference is {{"{kind}": …, "path": […]}}, not {value!r:.80}.')
    for name in names:
        if not isinstance(name, str) or name not in ids:
            raise InvalidWorkflow("parameters", f"{name!r:.80} is no task that this one waits for.")
    if not all(type(key) in (str, int) for key in path):
        raise InvalidWorkflow("parameters", "The path of a reference consists of keys (text) and places (numbers).")
    return Reference(kind, tuple(ids[name] for name in names), tuple(path))
