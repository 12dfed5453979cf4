"""Read the tasks of a workflow that are next to one task: what it waits for, what waits for it, what it undoes."""

import uuid
from collections.abc import Collection
from typing import Final, NamedTuple

from queue_app.sql.database import fetch_all

_TASK: Final = """
SELECT t.id, COALESCE(NULLIF(node.name, ''), substring(t.task_type FROM '[^.]*$')), t.status, {condition}
FROM {joined} LEFT JOIN queue_app_workflownode AS node ON node.task_id = t.id WHERE {chosen} ORDER BY t.id LIMIT %s
"""
_EDGE: Final = "queue_app_taskdependency AS edge JOIN queue_app_task AS t ON t.id = edge.{end}_id"
_PARENTS: Final = _TASK.format(
    condition="edge.condition", joined=_EDGE.format(end="before"), chosen="edge.after_id = %s"
)
_CHILDREN: Final = _TASK.format(
    condition="edge.condition", joined=_EDGE.format(end="after"), chosen="edge.before_id = %s"
)
_UNDOES: Final = _TASK.format(
    condition="''",
    joined="queue_app_workflownode AS undo JOIN queue_app_task AS t ON t.id = undo.compensates",
    chosen="undo.task_id = %s",
)
_UNDONE_BY: Final = _TASK.format(
    condition="''",
    joined="queue_app_task AS own"
    " JOIN queue_app_workflownode AS undoable ON undoable.task_id = own.id AND undoable.compensation IS NOT NULL"
    " JOIN queue_app_task AS t ON t.workflow_id = own.workflow_id"
    " JOIN queue_app_workflownode AS undo ON undo.task_id = t.id AND undo.compensates = own.id",
    chosen="own.id = %s",
)
_ADDED_BY: Final = _TASK.format(
    condition="''",
    joined="queue_app_workflownode AS added JOIN queue_app_task AS t ON t.id = added.added_by",
    chosen="added.task_id = %s",
)


class Link(NamedTuple):
    """A task next to another; ``condition`` says what one must do for the other to run."""

    id: uuid.UUID
    name: str
    status: str
    condition: str


def neighbours(task_id: uuid.UUID, limit: int) -> dict[str, list[Link]]:
    """Return at most ``limit`` neighbours of each kind, by kind, without the kinds that have none."""
    kinds = {
        "parents": _PARENTS, "children": _CHILDREN, "undoes": _UNDOES, "undone_by": _UNDONE_BY, "added_by": _ADDED_BY,
    }  # fmt: skip
    found = {kind: [Link(*row) for row in fetch_all(sql, [task_id, limit])] for kind, sql in kinds.items()}
    return {kind: links for kind, links in found.items() if links}


def members(workflow_id: uuid.UUID, ids: Collection[str]) -> list[uuid.UUID]:
    """Return those of the tasks that belong to a workflow."""
    sql = "SELECT id FROM queue_app_task WHERE id = ANY(%s::uuid[]) AND workflow_id = %s"
    return [row[0] for row in fetch_all(sql, [list(ids), workflow_id])]
