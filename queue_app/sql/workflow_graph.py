"""Read the tasks of a workflow, and what waits for what."""

import uuid
from collections.abc import Collection
from datetime import datetime
from typing import Final, NamedTuple

from queue_app.sql.database import fetch_all

_NODES: Final = """
SELECT t.id, t.task_type, COALESCE(node.name, ''), t.status, t.started_at, t.finished_at, node.compensates
FROM queue_app_task AS t LEFT JOIN queue_app_workflownode AS node ON node.task_id = t.id
WHERE t.workflow_id = %s ORDER BY t.id
"""
_EDGES: Final = """
SELECT edge.after_id, edge.before_id, edge.condition
FROM queue_app_taskdependency AS edge JOIN queue_app_task AS t ON t.id = edge.after_id
WHERE t.workflow_id = %s
"""
# Counted only so far: a list of workflows must not read a million rows.
_PENDING: Final = """
SELECT flow.id, (SELECT count(*) FROM (
    SELECT FROM queue_app_task AS t WHERE t.workflow_id = flow.id
        AND t.status IN ('blocked', 'executing', 'queued', 'scheduled') LIMIT %s) AS first)
FROM unnest(%s::uuid[]) AS flow (id)
"""
_WAITS_FOR: Final = """
SELECT before.id, before.task_type, COALESCE(node.name, ''), before.status, edge.condition
FROM queue_app_taskdependency AS edge JOIN queue_app_task AS before ON before.id = edge.before_id
    LEFT JOIN queue_app_workflownode AS node ON node.task_id = before.id
WHERE edge.after_id = %s AND NOT edge.met AND NOT (before.status = 'completed' AND edge.condition <> 'failure')
ORDER BY before.id LIMIT %s
"""


class Node(NamedTuple):
    """A task of a workflow."""

    id: uuid.UUID
    task_type: str
    name: str
    status: str
    started_at: datetime | None
    finished_at: datetime | None
    compensates: uuid.UUID | None


def nodes(workflow_id: uuid.UUID) -> list[Node]:
    """Return all tasks of a workflow, oldest first."""
    return [Node(*row) for row in fetch_all(_NODES, [workflow_id])]


def edges(workflow_id: uuid.UUID) -> list[tuple[uuid.UUID, uuid.UUID, str]]:
    """Return (after, before, condition) of all edges of a workflow."""
    return fetch_all(_EDGES, [workflow_id])


def pending(workflow_ids: Collection[uuid.UUID], limit: int) -> dict[uuid.UUID, int]:
    """Return {workflow: number of tasks that have not ended, at most ``limit``}."""
    return dict(fetch_all(_PENDING, [limit, list(workflow_ids)]))


def waits_for(task_id: uuid.UUID, limit: int) -> list[tuple[uuid.UUID, str, str, str, str]]:
    """Return (id, type, name, status, condition) of at most ``limit`` tasks for which a task waits."""
    return fetch_all(_WAITS_FOR, [task_id, limit])
