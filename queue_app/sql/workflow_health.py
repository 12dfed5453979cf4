"""Find workflows that a failed task holds, and the tasks that hold them."""

import uuid
from typing import Final, NamedTuple

from queue_app.sql.database import fetch_all
from queue_app.sql.workflow_settle import HOLDING

_HELD: Final = f"""
SELECT flow.id, flow.name, EXTRACT(EPOCH FROM statement_timestamp() - flow.held_at)::float8, flow.number,
    COALESCE(holding.name, ''), COALESCE(holding.status, '')
FROM (
    SELECT *, count(*) OVER () AS number FROM queue_app_workflow
    WHERE held_at IS NOT NULL AND held_at <= statement_timestamp() - make_interval(secs => %s)
    ORDER BY held_at LIMIT %s
) AS flow LEFT JOIN LATERAL (
    SELECT COALESCE(NULLIF(node.name, ''), substring(t.task_type FROM '[^.]*$')) AS name, t.status
    FROM queue_app_task AS t LEFT JOIN queue_app_workflownode AS node ON node.task_id = t.id
    WHERE {HOLDING} ORDER BY t.finished_at LIMIT 1
) AS holding ON true
ORDER BY flow.held_at
"""
_HOLDING: Final = f"""
SELECT t.id FROM queue_app_workflow AS flow JOIN queue_app_task AS t ON {HOLDING}
WHERE flow.id = %s AND flow.finished_at IS NULL ORDER BY t.finished_at, t.id LIMIT %s
"""


class Held(NamedTuple):
    """A workflow that a failed task holds, for how long, and the task that has held it longest."""

    id: uuid.UUID
    name: str
    seconds: float
    number: int  # of held workflows in all
    task: str  # name of the task, empty if it holds no more
    status: str


def held(limit: int, *, seconds: float = 0) -> list[Held]:
    """Return at most ``limit`` workflows that have been held for ``seconds``, the longest first."""
    return [Held(*row) for row in fetch_all(_HELD, [seconds, limit])]


def holding(workflow_id: uuid.UUID, limit: int) -> list[uuid.UUID]:
    """Return at most ``limit`` tasks that hold a workflow, the first to end first."""
    return [row[0] for row in fetch_all(_HOLDING, [workflow_id, limit])]
