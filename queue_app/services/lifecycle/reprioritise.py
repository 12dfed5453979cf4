"""Move waiting tasks to another band; each keeps the time at which it was queued."""

from __future__ import annotations

import uuid
from collections.abc import Sequence

from queue_app.core.priorities import Band
from queue_app.core.states import Status
from queue_app.exceptions import InvalidTransition, TaskNotFound
from queue_app.services.notify.index import push_on_commit
from queue_app.sql import waiting
from queue_app.sql.claim import statuses


def reprioritise(task_id: uuid.UUID, band: Band) -> None:
    """Move one task to ``band``.

    Raises ``TaskNotFound``, and ``InvalidTransition`` when the task no longer waits.
    """
    if reprioritise_many([task_id], band):
        return
    found = statuses([task_id])
    if task_id not in found:
        raise TaskNotFound(f"There is no task {task_id}.")
    status = found[task_id]
    raise InvalidTransition(f"The task is {status}; only waiting tasks have a priority to change.", status=status)


def reprioritise_many(ids: Sequence[uuid.UUID], band: Band) -> set[uuid.UUID]:
    """Move those of the tasks that wait; return the ids it applied to."""
    changed = waiting.reprioritise(ids, band)
    push_on_commit([task.entry for status, task in changed if status is Status.QUEUED])
    return {task.id for _, task in changed}
