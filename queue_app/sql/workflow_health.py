"""Find workflows that a failed task holds, and the tasks that hold them."""

import uuid
from collections.abc import Collection
from datetime import datetime
from typing import Final, NamedTuple

from queue_app.sql.database import fetch_all
from queue_app.sql.workflow_settle import HOLDING

_HELD: Final = f"""
SELECT flow.id, flow.name, EXTRACT(EPOCH FROM statement_timestamp() - flow.held_at)::float8, flow.number,
    COALESCE(holding.name, ''), COALESCE(holding.status, '')
FROM (
    SELECT *, count(*) OVER () AS number FROM queue_app_workflow
    WHERE held_at IS NOT NULL AND {{chosen}} ORDER BY held_at LIMIT %s
) AS flow LEFT JOIN LATERAL (
    SELECT COALESCE(NULLIF(node.name, ''), substring(t.task_type FROM '[^.]*$')) AS name, t.status
    FROM queue_app_task AS t LEFT JOIN queue_app_workflownode AS node ON node.task_id = t.id
    WHERE {HOLDING} ORDER BY t.finished_at LIMIT 1
) AS holding ON true
ORDER BY flow.held_at
"""
_LONG_HELD: Final = _HELD.format(chosen="held_at <= statement_timestamp() - make_interval(secs => %s)")
_HELD_AMONG: Final = _HELD.format(chosen="id = ANY(%s)")
_AWAITED: Final = """
SELECT t.workflow_id, t.id, COALESCE(NULLIF(node.name, ''), substring(t.task_type FROM '[^.]*$')),
    step.signal, step.until
FROM queue_app_task AS t JOIN queue_app_stepresult AS step ON step.task_id = t.id
    LEFT JOIN queue_app_workflownode AS node ON node.task_id = t.id
WHERE t.workflow_id = ANY(%s) AND t.status = 'blocked' AND t.attempt > 0 AND step.done_at IS NULL AND step.signal <> ''
ORDER BY t.id LIMIT %s
"""
_HOLDING: Final = f"""
SELECT t.id, COALESCE(NULLIF(node.name, ''), substring(t.task_type FROM '[^.]*$')), t.status, t.finished_at,
    letter.id, letter.exception_class, letter.message, node.compensates IS NOT NULL
FROM queue_app_workflow AS flow JOIN queue_app_task AS t ON {HOLDING}
    LEFT JOIN queue_app_workflownode AS node ON node.task_id = t.id
    LEFT JOIN queue_app_deadletter AS letter
        ON letter.task_id = t.id AND letter.replayed_at IS NULL AND letter.discarded_at IS NULL
WHERE flow.id = %s AND flow.finished_at IS NULL ORDER BY t.finished_at, t.id LIMIT %s
"""

_HOLDS: Final = f"""
SELECT FROM queue_app_workflow AS flow JOIN queue_app_task AS t ON {HOLDING}
WHERE t.id = %s AND flow.id = %s AND flow.finished_at IS NULL
"""


class HeldWorkflow(NamedTuple):
    """A workflow that a failed task holds, for how long, and the task that has held it longest."""

    id: uuid.UUID
    name: str
    seconds: float
    number: int  # of held workflows in all
    task: str  # name of the task, empty if it no longer holds the workflow
    status: str


class Holding(NamedTuple):
    """A task that holds its workflow, and its open dead letter, if it has one. The message is not redacted."""

    id: uuid.UUID
    name: str
    status: str
    finished_at: datetime | None
    letter_id: uuid.UUID | None
    exception_class: str | None
    message: str | None
    undoes: bool  # it is a compensation


def held(limit: int, *, seconds: float = 0) -> list[HeldWorkflow]:
    """Return at most ``limit`` workflows that have been held for ``seconds``, the longest first."""
    return [HeldWorkflow(*row) for row in fetch_all(_LONG_HELD, [seconds, limit])]


def holding(workflow_id: uuid.UUID, limit: int) -> list[Holding]:
    """Return at most ``limit`` tasks that hold a workflow, the first to end first."""
    return [Holding(*row) for row in fetch_all(_HOLDING, [workflow_id, limit])]


def holds(task_id: uuid.UUID, workflow_id: uuid.UUID) -> bool:
    """Return whether a task holds its workflow."""
    return bool(fetch_all(_HOLDS, [task_id, workflow_id]))


def held_among(workflow_ids: Collection[uuid.UUID]) -> dict[uuid.UUID, HeldWorkflow]:
    """Return those of the workflows that a failed task holds."""
    found = [HeldWorkflow(*row) for row in fetch_all(_HELD_AMONG, [list(workflow_ids), len(workflow_ids)])]
    return {each.id: each for each in found}


class AwaitedSignal(NamedTuple):
    """A task that waits for a signal."""

    workflow_id: uuid.UUID
    task_id: uuid.UUID
    task: str  # its name
    signal: str
    until: datetime | None


def awaited(workflow_ids: Collection[uuid.UUID], limit: int) -> list[AwaitedSignal]:
    """Return at most ``limit`` tasks of workflows that wait for a signal, oldest first."""
    return [AwaitedSignal(*row) for row in fetch_all(_AWAITED, [list(workflow_ids), limit])]
