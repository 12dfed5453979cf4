"""Read the results that tasks of workflows refer to."""

import uuid
from collections import defaultdict
from collections.abc import Collection, Sequence

from queue_app.core.references import ADDED, Reference
from queue_app.encryption import opened_if
from queue_app.sql.database import fetch_all, fetch_value


def workflow_of(task_id: uuid.UUID) -> uuid.UUID | None:
    """Return the workflow of a task."""
    found: uuid.UUID | None = fetch_value("SELECT workflow_id FROM queue_app_task WHERE id = %s", [task_id])
    return found


def sought(
    references: Sequence[Reference], workflow_id: uuid.UUID | None
) -> tuple[set[uuid.UUID], dict[uuid.UUID, list[uuid.UUID]]]:
    """Return the tasks whose results the references name, and {task: the tasks that it added}."""
    makers = {reference.ids[0] for reference in references if reference.kind == ADDED}
    added = added_by(makers, [workflow_id]) if makers else {}
    wanted = {task_id for reference in references if reference.kind != ADDED for task_id in reference.ids}
    return wanted.union(*added.values()), added


def results(ids: Collection[uuid.UUID], workflows: Collection[uuid.UUID | None]) -> dict[uuid.UUID, str]:
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


def added_by(ids: Collection[uuid.UUID], workflows: Collection[uuid.UUID | None]) -> dict[uuid.UUID, list[uuid.UUID]]:
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
