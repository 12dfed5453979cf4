"""Run a task sooner than it would: a waiting one now, an ended one again.

A task that failed, expired or was cancelled is queued again with a fresh retry budget; its
attempt, which fences, goes on rising, and the errors of earlier attempts stay. One that is
a dead letter is replayed instead (``replay``), which closes its record. A completed task is
never run again by itself: ``run_again`` makes a new one.

Crash points: as every transition. Between the commit and the push the task is queued but
not indexed, and the reconciler pushes it.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import Any

from queue_app import registry
from queue_app.core.records import Enqueued, NewTask, TaskRef
from queue_app.core.states import Status
from queue_app.core.unmasking import unmask
from queue_app.displayed_payload import displayed_payload
from queue_app.exceptions import InvalidTransition, TaskNotFound
from queue_app.models import DeadLetter, Task, TaskPayload
from queue_app.services.enqueue.store import enqueue
from queue_app.services.enqueue.validate import check_parameters
from queue_app.services.lifecycle.replay import replay_open
from queue_app.services.notify import events
from queue_app.services.notify.index import push_on_commit
from queue_app.sql import waiting
from queue_app.sql.claim import statuses
from queue_app.sql.database import atomic

#: States that ``retry`` leaves.
RETRIABLE = frozenset({Status.FAILED, Status.EXPIRED, Status.CANCELLED, Status.DEAD_LETTER})
_OPTIONS = ("concurrency_key", "weight")


def run_now(task_id: uuid.UUID) -> None:
    """Queue a scheduled task without waiting for its time.

    Raises ``TaskNotFound``, and ``InvalidTransition`` when it is not scheduled.
    """
    if not run_now_many([task_id]):
        raise _refusal(task_id, "only scheduled tasks can be run early")


def run_now_many(ids: Sequence[uuid.UUID]) -> set[uuid.UUID]:
    """Queue those of the tasks that are scheduled; return the ids it applied to."""
    return _queued(waiting.run_now(ids))


def retry(task_id: uuid.UUID, *, by: str = "") -> None:
    """Queue an ended task again.

    Raises ``TaskNotFound``, and ``InvalidTransition`` when it has not ended, or was completed.
    """
    if not retry_many([task_id], by=by):
        raise _refusal(task_id, "only tasks that ended without success can be tried again")


def retry_many(ids: Sequence[uuid.UUID], *, by: str = "") -> set[uuid.UUID]:
    """Queue those of the tasks again that ended without success; return the ids it applied to."""
    with atomic():
        open_letters = DeadLetter.objects.open().filter(task_id__in=list(ids))
        replayed = replay_open(list(open_letters.values_list("id", flat=True)), by=by)
        return {task.id for _, task in replayed} | _queued(waiting.requeue(ids))


def _queued(tasks: list[TaskRef]) -> set[uuid.UUID]:
    push_on_commit([task.entry for task in tasks], events=events.of_queued_again(tasks))
    return {task.id for task in tasks}


def run_again(task_id: uuid.UUID, *, parameters: dict[str, Any] | None = None) -> Enqueued:
    """Enqueue a new task like an old one, with ``parameters`` (edited from what is shown, masks and all) if given.

    Raises ``TaskNotFound``, and ``InvalidTaskData`` for parameters that must not be stored.
    """
    task = Task.objects.filter(pk=task_id).first()
    payload = TaskPayload.objects.filter(pk=task_id).first()
    if task is None or payload is None:
        raise TaskNotFound(f"There is no task {task_id}.")
    meant = payload.parameters
    if parameters is not None:
        check_parameters(parameters)  # its depth, before anything walks through it
        meant = unmask(parameters, displayed_payload(task.task_type, payload)[2], payload.parameters)
    registry.get(task.task_type)  # a type that no code knows any more could never run
    options = {name: getattr(task, name) for name in _OPTIONS if name in NewTask.__dataclass_fields__}
    return enqueue(
        NewTask(
            task_type=task.task_type,
            args=payload.args,
            parameters=meant,
            queue=task.queue,
            priority=task.band,
            capabilities=tuple(task.capabilities),
            user=task.user,
            timeout=task.timeout,
            max_retries=task.max_retries,
            retry_delay=task.retry_delay,
            **options,
        )
    )


def _refusal(task_id: uuid.UUID, why: str) -> TaskNotFound | InvalidTransition:
    found = statuses([task_id])
    if task_id not in found:
        return TaskNotFound(f"There is no task {task_id}.")
    status = found[task_id]
    return InvalidTransition(f"The task is {status.replace('_', ' ')}; {why}.", status=status)
