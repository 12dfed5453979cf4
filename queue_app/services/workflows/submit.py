"""Submit workflows as JSON, by the names of task types: for the API and the command line.

A task names what it waits for by the names of other tasks, and refers to their results in its arguments by
``{"$result": "name"}``, with ``"path": ["key", 0]`` for a part of one.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from queue_app import conf, registry
from queue_app.core.graph import Graph, NewWorkflow, NodeExtra, check_references, check_size, in_order
from queue_app.core.ids import uuid7
from queue_app.core.records import Enqueued, NewTask, TaskSpec
from queue_app.core.references import MANY, ONE, Reference, marked
from queue_app.core.signatures import check_arguments
from queue_app.encryption import applies_to
from queue_app.exceptions import InvalidTaskData, InvalidWorkflow, suggestion
from queue_app.models.columns import NAME_LENGTH
from queue_app.models.workflow import Condition, OnFailure
from queue_app.services.enqueue.validate import check_call, check_spec, check_task_type, check_text
from queue_app.services.workflows.store import check_workflow, enqueue_workflow, undoing


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
