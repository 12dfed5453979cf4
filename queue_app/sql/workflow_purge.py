"""Delete ended workflows past their retention, each as a whole."""

import uuid
from typing import Final

from queue_app.sql.database import execute, fetch_all, fetch_value
from queue_app.sql.upkeep import PURGE

_OLD_WORKFLOWS: Final = """
SELECT id FROM queue_app_workflow AS flow
WHERE finished_at < statement_timestamp() - make_interval(secs => CASE WHEN state = 'completed' THEN %s ELSE %s END)
    AND NOT EXISTS (
        SELECT FROM queue_app_task AS t JOIN queue_app_deadletter AS letter ON letter.task_id = t.id
        WHERE t.workflow_id = flow.id AND t.status = 'dead_letter'
            AND letter.replayed_at IS NULL AND letter.discarded_at IS NULL)
ORDER BY finished_at LIMIT %s
"""


def old_workflows(success_seconds: float, failure_seconds: float, limit: int) -> list[uuid.UUID]:
    """Return ended workflows past their retention whose dead letters are all closed."""
    return [row[0] for row in fetch_all(_OLD_WORKFLOWS, [success_seconds, failure_seconds, limit])]


def purge_workflow(workflow_id: uuid.UUID) -> int:
    """Delete an ended workflow with all its tasks; return how many tasks. The caller has it alone."""
    if not fetch_value("SELECT finished_at FROM queue_app_workflow WHERE id = %s FOR UPDATE", [workflow_id]):
        return 0
    among = "IN (SELECT id FROM queue_app_task WHERE workflow_id = %s)"
    execute(f"DELETE FROM queue_app_taskdependency WHERE after_id {among}", [workflow_id])
    execute(f"DELETE FROM queue_app_taskgate WHERE task_id {among}", [workflow_id])
    execute(f"DELETE FROM queue_app_workflownode WHERE task_id {among}", [workflow_id])
    sql = PURGE.format(which="workflow_id = %(workflow)s", unkeyed="true")
    deleted = len(fetch_all(sql.replace("SKIP LOCKED", ""), {"workflow": workflow_id, "limit": None}))
    execute("DELETE FROM queue_app_signal WHERE workflow_id = %s", [workflow_id])
    execute("DELETE FROM queue_app_workflow WHERE id = %s", [workflow_id])
    return deleted


def expired_letters_of_workflows(limit: int) -> list[uuid.UUID]:
    """Return open dead letters past their retention whose tasks are in workflows that have not ended."""
    found = fetch_all(
        "SELECT letter.id FROM queue_app_deadletter AS letter JOIN queue_app_task AS t ON t.id = letter.task_id"
        " JOIN queue_app_workflow AS flow ON flow.id = t.workflow_id AND flow.finished_at IS NULL"
        " WHERE letter.expires_at < statement_timestamp() AND letter.replayed_at IS NULL"
        " AND letter.discarded_at IS NULL LIMIT %s",
        [limit],
    )
    return [row[0] for row in found]
