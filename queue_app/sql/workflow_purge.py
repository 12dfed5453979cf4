"""Delete ended workflows past their retention, in parts; the workflow's row goes last."""

import uuid
from typing import Final

from queue_app.sql.database import execute, fetch_all
from queue_app.sql.upkeep import PURGE

# Those that are being deleted come first. No dead letter of theirs is open.
_OLD_WORKFLOWS: Final = """
SELECT id FROM queue_app_workflow AS flow
WHERE finished_at < statement_timestamp() - make_interval(secs => CASE WHEN state = 'completed' THEN %s ELSE %s END)
    AND NOT EXISTS (
        SELECT FROM queue_app_task AS t JOIN queue_app_deadletter AS letter ON letter.task_id = t.id
        WHERE t.workflow_id = flow.id AND t.status = 'dead_letter'
            AND letter.replayed_at IS NULL AND letter.discarded_at IS NULL)
ORDER BY state <> 'deleting', finished_at LIMIT %s
"""
_BESIDE: Final = (("taskdependency", "after_id"), ("taskgate", "task_id"), ("workflownode", "task_id"))


def old_workflows(success_seconds: float, failure_seconds: float, limit: int) -> list[uuid.UUID]:
    """Return ended workflows past their retention whose dead letters are all closed."""
    return [row[0] for row in fetch_all(_OLD_WORKFLOWS, [success_seconds, failure_seconds, limit])]


def purge_part(workflow_id: uuid.UUID, limit: int) -> tuple[int, bool]:
    """Delete at most ``limit`` tasks of an ended workflow, which the caller has alone; return how many, and if all.

    From the first part on, readers do not see the workflow, and nothing of it runs again. Its row goes with the last.
    """
    sql = "UPDATE queue_app_workflow SET state = 'deleting' WHERE id = %s AND finished_at IS NOT NULL"
    if not execute(sql, [workflow_id]):  # it runs again
        return 0, True
    found = fetch_all("SELECT id FROM queue_app_task WHERE workflow_id = %s ORDER BY id LIMIT %s", [workflow_id, limit])
    ids = [row[0] for row in found]
    for table, column in _BESIDE:
        execute(f"DELETE FROM queue_app_{table} WHERE {column} = ANY(%s)", [ids])
    sql = PURGE.format(which="id = ANY(%(ids)s)", unkeyed="true").replace("SKIP LOCKED", "")
    deleted = len(fetch_all(sql, {"ids": ids, "limit": None}))
    is_last = len(ids) < limit
    if is_last:
        execute("DELETE FROM queue_app_signal WHERE workflow_id = %s", [workflow_id])
        execute("DELETE FROM queue_app_workflow WHERE id = %s", [workflow_id])
    return deleted, is_last


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
