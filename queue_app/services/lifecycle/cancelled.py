"""Notify the index, workers and listeners of tasks that were cancelled."""

import uuid
from collections.abc import Sequence

from queue_app.core.events import EventName, occasion_of
from queue_app.core.records import TaskRef
from queue_app.core.states import Status
from queue_app.index import Index
from queue_app.services.notify import events
from queue_app.services.notify.index import on_commit


def notify_cancelled(cancelled: Sequence[tuple[Status, uuid.UUID | None, TaskRef]]) -> None:
    """Notify of tasks, each with its status before and its worker, once the caller's transaction has committed."""
    queued = [task for before, _, task in cancelled if before is Status.QUEUED]
    if queued:
        on_commit(Index.remove, "remove", queued)
    workers = {worker for before, worker, _ in cancelled if before is Status.EXECUTING and worker is not None}
    if workers:
        on_commit(Index.notify_workers, "tell", workers)
    ended = [task for before, _, task in cancelled if before is not Status.EXECUTING]
    if ended:
        events.publish_on_commit((occasion_of(EventName.CANCELLED, task, Status.CANCELLED), task.id) for task in ended)
