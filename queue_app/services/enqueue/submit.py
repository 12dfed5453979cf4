"""Submit a task by the name of its type: what API, command line and request stream have in common.

The type is only ever looked up among the registered tasks, and what the caller leaves open
is as the registered task says.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from django.tasks.base import Task as RegisteredTask

from queue_app import registry
from queue_app.core.priorities import Band, band_from_django
from queue_app.core.records import Enqueued, NewTask
from queue_app.core.states import Status
from queue_app.exceptions import InvalidTaskData, UnknownQueue
from queue_app.models import Queue, Task
from queue_app.services.enqueue.store import enqueue, enqueue_many
from queue_app.services.enqueue.validate import (
    MAX_DELAY,
    check_capabilities,
    check_queue_name,
    check_task,
    check_task_type,
)
from queue_app.services.read.inspect import get_task, position_of
from queue_app.sql.database import clock


@dataclass(frozen=True, slots=True, kw_only=True)
class Submission:
    """What a caller asks for; ``None`` means: as the registered task says."""

    task_type: str
    parameters: dict[str, Any] = field(default_factory=dict)
    user: str = ""
    queue: str | None = None
    priority: Band | None = None
    capabilities: Sequence[str] | None = None
    run_after: datetime | None = None
    delay: float | None = None  # seconds from now; instead of run_after
    timeout: float | None = None
    max_retries: int | None = None
    idempotency_key: str | None = None
    concurrency_key: str | None = None
    weight: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Submitted:
    """The stored task; ``queue_position`` is ``None`` when it does not wait in a reachable index."""

    id: uuid.UUID
    status: Status
    task_type: str
    queue: str
    priority: Band
    capabilities: tuple[str, ...]
    created_at: datetime
    replayed: bool
    queue_position: int | None


def submit(submission: Submission, *, tell: bool = True, outside: bool = True) -> Submitted:
    """Store a task by the name of its type; without ``tell`` the caller writes the event that it was accepted.

    Raises ``InvalidTaskData`` (``UnknownTaskType`` and ``UnknownQueue`` with near matches)
    for what must not be stored, ``IdempotencyConflict``, ``QueueFull`` and
    ``UserLimitExceeded`` as ``enqueue`` does. Without ``outside`` only explicit limits hold.
    """
    registered = registry.get(check_task_type(submission.task_type))
    new = _with_defaults(submission, registered)
    _check_queue(new.queue, registered.queue_name)
    enqueued = enqueue(new, tell=tell, outside=outside, locate=True)
    return _created(new, enqueued) if enqueued.created else _replayed(enqueued.id)


def submit_many(submissions: Sequence[Submission]) -> list[Enqueued]:
    """Store many tasks by the names of their types, all or nothing; return what was stored, in order.

    Raises as ``submit`` does; an ``InvalidTaskData`` names the item, as in ``tasks[3].priority``.
    """
    tasks: list[NewTask] = []
    keys: set[str] = set()
    queues: set[tuple[str, str]] = set()
    for position, submission in enumerate(submissions):
        try:
            registered = registry.get(check_task_type(submission.task_type))
            new = _with_defaults(submission, registered)
            if (new.queue, registered.queue_name) not in queues:
                _check_queue(new.queue, registered.queue_name)
                queues.add((new.queue, registered.queue_name))
            check_task(new)
            _check_repetition(new.idempotency_key, keys)
        except InvalidTaskData as error:
            error.field = f"tasks[{position}].{error.field}"
            raise
        tasks.append(new)
    return enqueue_many(tasks, outside=True)


def _check_repetition(key: str | None, keys: set[str]) -> None:
    if key is None:
        return
    if key in keys:
        raise InvalidTaskData(
            "idempotency_key", "Another task of this request has the same key.", code="duplicate_in_batch"
        )
    keys.add(key)


def after(delay: float) -> datetime | None:
    """Return the time ``delay`` seconds from now by the clock of the rows; ``None`` for no delay.

    Raises ``InvalidTaskData`` for a delay that is no number of seconds up to ten years.
    """
    if type(delay) not in (int, float):
        raise InvalidTaskData("delay", "delay must be a number of seconds.", code="number_expected")
    limit = int(MAX_DELAY.total_seconds())
    if not 0 <= delay <= limit:  # false for NaN too
        raise InvalidTaskData(
            "delay", f"delay must lie between 0 and {limit} seconds.", code="out_of_range", limit=limit
        )
    if delay == 0:
        return None
    return clock() + timedelta(seconds=delay)


def _with_defaults(submission: Submission, registered: RegisteredTask[Any, Any]) -> NewTask:
    def own[T](given: T | None, option: str, default: T) -> T:
        found: T = getattr(registered, option, default) if given is None else given
        return found

    run_after = after(submission.delay) if submission.delay is not None else submission.run_after
    return NewTask(
        task_type=registry.type_of(registered),
        parameters=submission.parameters,
        user=submission.user,
        queue=registered.queue_name if submission.queue is None else submission.queue,
        priority=band_from_django(registered.priority) if submission.priority is None else submission.priority,
        capabilities=check_capabilities(own(submission.capabilities, "capabilities", ())),
        run_after=run_after,
        timeout=own(submission.timeout, "timeout", None),
        max_retries=own(submission.max_retries, "max_retries", None),
        retry_delay=getattr(registered, "retry_delay", None),
        idempotency_key=own(submission.idempotency_key, "idempotency_key", None),
        concurrency_key=own(submission.concurrency_key, "concurrency_key", ""),
        weight=own(submission.weight, "weight", 1),
    )


def _check_queue(name: Any, own_queue: str) -> None:
    """Refuse a queue that neither staff nor the task itself have named."""
    if check_queue_name(name) == own_queue or Queue.objects.filter(pk=name).exists():
        return
    raise UnknownQueue(name, {own_queue, *Queue.objects.values_list("name", flat=True)[:1000]})


def _created(new: NewTask, enqueued: Enqueued) -> Submitted:
    return Submitted(
        id=enqueued.id,
        status=enqueued.status,
        task_type=new.task_type,
        queue=new.queue,
        priority=new.priority,
        capabilities=new.capabilities,
        created_at=enqueued.enqueued_at,
        replayed=False,
        queue_position=enqueued.queue_position,
    )


def _replayed(task_id: uuid.UUID) -> Submitted:
    """Describe the task that holds the key as it is now; it may wait elsewhere than this call asked for."""
    task = get_task(Task.objects.all(), task_id)
    return Submitted(
        id=task.id,
        status=Status(task.status),
        task_type=task.task_type,
        queue=task.queue,
        priority=task.band,
        capabilities=tuple(task.capabilities),
        created_at=task.created_at,
        replayed=True,
        queue_position=position_of(task),
    )
