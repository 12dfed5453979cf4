"""Cancel tasks: what waits ends at once, what runs is asked to stop.

A worker is told through the index that there is something to look up in the rows, and looks
by itself with every heartbeat. Whatever the attempt then returns, its task ends as cancelled.

Crash points: after the row and before the index, the index proposes a cancelled task once;
the row refuses it and the entry is gone. A worker that was not told learns of it with its
next heartbeat; one that is gone is the reaper's, which cancels the task.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence

from queue_app.core.events import EventName, occasion_of
from queue_app.core.states import Status
from queue_app.exceptions import InvalidTransition, TaskNotFound
from queue_app.services.notify import events
from queue_app.services.notify.index import on_commit
from queue_app.sql import waiting
from queue_app.sql.claim import statuses


def cancel(task_id: uuid.UUID) -> Status:
    """Cancel one task; return its status now: cancelled, or executing when it was asked to stop.

    Raises ``TaskNotFound``, and ``InvalidTransition`` when the task has ended already.
    """
    changed = cancel_many([task_id])
    if task_id in changed:
        return changed[task_id]
    found = statuses([task_id])
    if task_id not in found:
        raise TaskNotFound(f"There is no task {task_id}.")
    status = found[task_id]
    raise InvalidTransition(f"The task is {status} and cannot be cancelled any more.", status=status)


def cancel_many(ids: Sequence[uuid.UUID]) -> dict[uuid.UUID, Status]:
    """Cancel those of the tasks that are pending; return the status now of each it applied to."""
    cancelled = waiting.cancel(ids)
    queued = [task for before, _, task in cancelled if before is Status.QUEUED]
    if queued:
        on_commit(lambda index: index.remove(queued), "remove")
    workers = {worker for before, worker, _ in cancelled if before is Status.EXECUTING and worker is not None}
    if workers:
        on_commit(lambda index: index.tell(workers), "tell")
    ended = [task for before, _, task in cancelled if before is not Status.EXECUTING]
    if ended:
        events.publish_on_commit((occasion_of(EventName.CANCELLED, task, Status.CANCELLED), task.id) for task in ended)
    return {
        task.id: Status.EXECUTING if before is Status.EXECUTING else Status.CANCELLED for before, _, task in cancelled
    }
