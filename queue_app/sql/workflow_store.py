"""Store workflows and their tasks by COPY; read the results that flow into their tasks."""

import json
import uuid
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, Final

from queue_app.core.graph import Edge, Graph, NewWorkflow, Sharded
from queue_app.core.ids import as_digits
from queue_app.core.records import Enqueued
from queue_app.core.states import Status
from queue_app.encryption import SHARED, opened_if, sealed_call, sealed_if
from queue_app.sql.database import connection, execute, fetch_all, fetch_value
from queue_app.sql.insert import (
    PAYLOAD_COLUMNS,
    SPEC_COLUMNS,
    STEP,
    field,
    in_chunks,
    instants,
    payload_extras,
    payload_lines,
    spec_values,
)
from queue_app.telemetry import tracing

_COLUMNS: Final = f"{', '.join(SPEC_COLUMNS)}, attempt, failures, created_at, workflow_id, id, status, queued_at"
_INSERT: Final = """
INSERT INTO queue_app_workflow
    (id, name, "user", state, on_failure, nodes, created_at, deadline, cancel_reason, max_concurrent, paused,
     paused_reason, paused_by)
VALUES (%s, %s, %s, 'running', %s, %s, %s, %s, '', %s, false, '', '')
"""


def insert_workflow(flow: NewWorkflow, nodes: int, at: datetime) -> None:
    """Store the row of a workflow."""
    execute(_INSERT, [flow.id, flow.name, flow.user, flow.on_failure, nodes, at, flow.deadline, flow.max_concurrent])


def add_size(workflow_id: uuid.UUID, nodes: int) -> int:
    """Count tasks that were added to a workflow; return how many it has now."""
    sql = "UPDATE queue_app_workflow SET nodes = nodes + %s WHERE id = %s RETURNING nodes"
    return int(fetch_value(sql, [nodes, workflow_id]))


def insert_graph(
    graph: Graph, workflow_id: uuid.UUID, blocked: Mapping[uuid.UUID, bool], at: datetime, waits: Sharded
) -> list[Enqueued]:
    """Store tasks of a workflow in order, and what they wait for; return the tasks.

    ``blocked`` names those that do not start now: with true they wait for nothing but room, else for other tasks.
    """
    rows = graph.rows
    stored: list[Enqueued] = []
    held: list[datetime | None] = []
    sent = tracing.of_caller()
    for row, queued_at in zip(rows, instants(at, STEP), strict=False):
        status = Status.QUEUED
        place: datetime | None = queued_at
        if row.id in blocked:
            status, place = Status.BLOCKED, queued_at if blocked[row.id] else None
        elif row.spec.run_after is not None and row.spec.run_after > at:
            status, place = Status.SCHEDULED, None
        held.append(place)
        place = place if status is Status.QUEUED else None
        stored.append(Enqueued(row.id, row.spec, status, at, place, sent_trace=sent))
    digits = as_digits([row.id for row in rows])
    more, ends = payload_extras(rows, sent)
    _copy("queue_app_task", _COLUMNS, _task_lines(digits, stored, held, workflow_id, at))
    payloads = payload_lines(digits, map(sealed_call, rows), ends)
    _copy("queue_app_taskpayload", f"{PAYLOAD_COLUMNS}{more}", payloads)
    insert_edges(*waits)
    _copy_rows(
        "queue_app_workflownode",
        "task_id, name, compensation, compensates, added_by",
        ((task_id, *extra) for task_id, extra in graph.extras.items()),
    )
    return stored


def _task_lines(
    digits: Sequence[str],
    stored: Sequence[Enqueued],
    held: Sequence[datetime | None],
    workflow_id: uuid.UUID,
    at: datetime,
) -> Iterable[str]:
    shared: dict[int, str] = {}
    for task_id, item, queued_at in zip(digits, stored, held, strict=True):
        prefix = shared.get(id(item.spec))
        if prefix is None:
            values = (*spec_values(item.spec), 0, 0, at, workflow_id)
            prefix = shared[id(item.spec)] = "\t".join(map(field, values)) + "\t"
        yield f"{prefix}{task_id}\t{item.status.value}\t{field(queued_at)}\n"


def insert_edges(edges: Sequence[Edge], counters: Sequence[tuple[uuid.UUID, int, int]]) -> None:
    """Store edges and counters (task, shard, remaining)."""
    _copy_rows(
        "queue_app_taskdependency",
        "after_id, before_id, condition, shard, met",
        ((edge.after, edge.before, edge.condition, edge.shard, "f") for edge in edges),
    )
    _copy_rows("queue_app_dependencycounter", "task_id, shard, remaining", counters)


def _copy_rows(table: str, columns: str, rows: Iterable[Sequence[Any]]) -> None:
    lines = ["\t".join(map(field, row)) + "\n" for row in rows]
    if lines:
        _copy(table, columns, lines)


def _copy(table: str, columns: str, lines: Iterable[str]) -> None:
    # Django's cursors do not translate errors of the driver in COPY.
    with (
        connection().wrap_database_errors,
        connection().cursor() as cursor,
        cursor.copy(f"COPY {table} ({columns}) FROM STDIN") as copy,
    ):
        for text in in_chunks(lines):
            copy.write(text)


def compensation_text(call: Mapping[str, Any]) -> str:
    """Return the stored form of a compensation."""
    return sealed_if(json.dumps(call, ensure_ascii=False, separators=(",", ":")), call["task_type"], SHARED)


# Read the results that tasks of workflows refer to.


def results(ids: Collection[uuid.UUID], workflows: Collection[uuid.UUID]) -> dict[uuid.UUID, str]:
    """Return the results (JSON text) of the completed tasks among ``ids`` in these workflows."""
    found = fetch_all(
        "SELECT t.id, COALESCE(result.value::text, 'null'), t.task_type FROM queue_app_task AS t"
        " LEFT JOIN queue_app_taskresult AS result ON result.task_id = t.id"
        " WHERE t.id = ANY(%s) AND t.workflow_id = ANY(%s) AND t.status = 'completed'",
        [list(ids), list(workflows)],
    )
    return {task_id: opened_if(text, task_type) for task_id, text, task_type in found}


def size(ids: Collection[uuid.UUID]) -> int:
    """Return how many bytes the stored results of tasks take as text."""
    sql = "SELECT COALESCE(sum(octet_length(value::text)), 0) FROM queue_app_taskresult WHERE task_id = ANY(%s)"
    return int(fetch_value(sql, [list(ids)]))


def added_by(ids: Collection[uuid.UUID], workflows: Collection[uuid.UUID]) -> dict[uuid.UUID, list[uuid.UUID]]:
    """Return {task: the tasks that it added, in order}."""
    found = fetch_all(
        "SELECT node.added_by, t.id FROM queue_app_workflownode AS node JOIN queue_app_task AS t ON t.id = node.task_id"
        " WHERE node.added_by = ANY(%s) AND t.workflow_id = ANY(%s) ORDER BY t.id",
        [list(ids), list(workflows)],
    )
    added: dict[uuid.UUID, list[uuid.UUID]] = defaultdict(list)
    for task_id, each in found:
        added[task_id].append(each)
    return added
