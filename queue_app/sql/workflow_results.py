"""Read the results that tasks of workflows refer to."""

import uuid
from collections import defaultdict
from collections.abc import Collection

from queue_app.encryption import opened_if
from queue_app.sql.database import fetch_all, fetch_value


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
