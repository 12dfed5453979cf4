"""Delete ended tasks on request, with everything that is stored about them; one that has not ended stays.

Crash points: everything is one statement. The index holds no ended tasks. If the release of the last attempt was lost,
the reconciler ends a lease without a row.
"""

import uuid
from collections.abc import Sequence

from queue_app.core.ids import Id, parse_id
from queue_app.exceptions import InvalidTransition, TaskNotFound
from queue_app.models import Task
from queue_app.sql import schedules, upkeep


def delete(task_id: Id) -> None:
    """Delete one ended task; raise ``TaskNotFound``, and ``InvalidTransition`` when it has not ended."""
    found = parse_id(task_id)
    if delete_many([found]):
        return
    task = Task.objects.filter(pk=found).only("status", "workflow_id").first()
    if task is None:
        raise TaskNotFound(f"There is no task {found}.")
    why = f"it is {task.status}" if task.workflow_id is None else "it belongs to a workflow, and is purged with it"
    raise InvalidTransition(f"The task cannot be deleted: {why}.", status=task.status)


def delete_many(ids: Sequence[Id]) -> set[uuid.UUID]:
    """Delete the ended tasks among ``ids`` that belong to no workflow, with their dead letters; return their ids."""
    schedules.copy_outcomes()  # the ticks of schedules outlive their tasks
    return upkeep.delete_ended([parse_id(given) for given in ids])
