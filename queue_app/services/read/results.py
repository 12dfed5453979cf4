"""Read what became of a task, in the terms of ``django.tasks``."""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.tasks.base import TaskError

from queue_app.core.priorities import Band
from queue_app.core.states import Status
from queue_app.models import Task, TaskAttempt, TaskPayload, TaskResult


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredResult:
    """A task's row with its payload, result and failed attempts."""

    id: uuid.UUID
    task_type: str
    status: Status
    created_at: datetime
    first_started_at: datetime | None
    started_at: datetime | None
    finished_at: datetime | None
    args: list[Any]
    parameters: dict[str, Any]
    value: Any
    errors: list[TaskError]
    worker_ids: list[str]
    queue: str
    band: Band
    run_after: datetime | None
    options: dict[str, Any]  # of the stored call, by the names of QueueTask


def load_result(task_id: uuid.UUID) -> StoredResult | None:
    """Return the stored result of a task, or ``None`` when there is no such task."""
    task = Task.objects.filter(pk=task_id).first()
    if task is None:
        return None
    payload = TaskPayload.objects.filter(pk=task_id).first()
    attempts = list(task.attempts.order_by("attempt"))
    workers = [str(attempt.worker_id) for attempt in attempts if attempt.worker_id]
    recorded = {attempt.attempt for attempt in attempts}
    if task.worker_id is not None and task.attempt not in recorded:
        workers.append(str(task.worker_id))
    return StoredResult(
        id=task_id,
        task_type=task.task_type,
        status=Status(task.status),
        created_at=task.created_at,
        first_started_at=attempts[0].started_at if attempts else task.started_at,
        started_at=task.started_at,
        finished_at=task.finished_at,
        args=payload.args if payload else [],
        parameters=payload.parameters if payload else {},
        value=TaskResult.objects.filter(pk=task_id).values_list("value", flat=True).first(),
        errors=[TaskError(exception_class_path=a.exception_class, traceback=a.traceback) for a in attempts],
        worker_ids=workers,
        queue=task.queue,
        band=task.band,
        run_after=task.run_after,
        options={
            "capabilities": tuple(task.capabilities),
            "timeout": task.timeout,
            "max_retries": task.max_retries,
            "retry_delay": task.retry_delay,
            "idempotency_key": task.idempotency_key,
            "user": task.user,
        },
    )


def earlier_attempts(task_id: uuid.UUID) -> tuple[list[TaskError], list[str]]:
    """Return the errors of the attempts that were recorded so far, and the workers that made them, in order."""
    found = TaskAttempt.objects.filter(task_id=task_id).order_by("attempt")
    rows = list(found.values_list("exception_class", "traceback", "worker_id"))
    errors = [TaskError(exception_class_path=kind, traceback=traceback) for kind, traceback, _worker in rows]
    return errors, [str(worker) for _kind, _traceback, worker in rows if worker]
