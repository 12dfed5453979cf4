"""How tasks and queues look in answers."""

from __future__ import annotations

from typing import Any

from queue_app.core.masking import mask
from queue_app.core.priorities import Band
from queue_app.core.redaction import redact, redact_value, secrets_of
from queue_app.models import DeadLetter, Queue, ReplayOperation, Task, TaskAttempt
from queue_app.services.inspect import TaskDetail
from queue_app.services.submit import Submitted


def submitted(task: Submitted) -> dict[str, Any]:
    """Return the answer to a submission."""
    return {
        "task_id": task.id,
        "status": task.status,
        "queue_position": task.queue_position,
        "replayed": task.replayed,
        "task_type": task.task_type,
        "queue": task.queue,
        "priority": task.priority.label,
        "capabilities": task.capabilities,
        "created_at": task.created_at,
    }


def summary(task: Task) -> dict[str, Any]:
    """Return what the row of a task holds."""
    return {
        "task_id": task.id,
        "task_type": task.task_type,
        "queue": task.queue,
        "status": task.status,
        "priority": task.band.label,
        "effective_priority": task.effective_band.label,
        "capabilities": task.capabilities,
        "user": task.user,
        "attempt": task.attempt,
        "failures": task.failures,
        "worker_id": task.worker_id,
        "created_at": task.created_at,
        "run_after": task.run_after,
        "queued_at": task.queued_at,
        "started_at": task.started_at,
        "deadline": task.deadline,
        "finished_at": task.finished_at,
        "cancel_requested_at": task.cancel_requested_at,
    }


def detail(found: TaskDetail, *, tracebacks: bool) -> dict[str, Any]:
    """Return all about one task without its secrets; tracebacks show the inside of the server, so not to everyone."""
    secrets = secrets_of([found.args, found.parameters])
    return summary(found.task) | {
        "queue_position": found.queue_position,
        "idempotency_key": found.task.idempotency_key,
        "parameters": mask(found.parameters),
        "args": mask(found.args),
        "options": {
            "timeout": found.options.timeout,
            "max_retries": found.options.max_retries,
            "retry_delay": found.options.retry_delay,
        },
        "attempts": [_attempt(attempt, secrets, tracebacks=tracebacks) for attempt in found.attempts],
        "result": redact_value(found.result, secrets),
    }


def _attempt(attempt: TaskAttempt, secrets: frozenset[str], *, tracebacks: bool) -> dict[str, Any]:
    return {
        "attempt": attempt.attempt,
        "worker_id": attempt.worker_id,
        "started_at": attempt.started_at,
        "finished_at": attempt.finished_at,
        "exception_class": attempt.exception_class,
        "message": redact(attempt.message, secrets),
        "traceback": redact(attempt.traceback, secrets) if tracebacks else None,
    }


def queue(found: Queue) -> dict[str, Any]:
    """Return a queue and whether it is paused."""
    return {
        "name": found.name,
        "paused": found.paused,
        "resume_at": found.resume_at,
        "paused_at": found.paused_at,
        "paused_by": found.paused_by,
        "paused_reason": found.paused_reason,
        "max_concurrent": found.max_concurrent,
    }


def dead_letter(letter: DeadLetter, secrets: frozenset[str], *, staff: bool) -> dict[str, Any]:
    """Return a dead letter without secrets; who of the staff did something with it, and why, is told to staff."""
    return {
        "id": letter.id,
        "task_id": letter.task_id,
        "task_type": letter.task_type,
        "queue": letter.queue,
        "priority": Band(letter.priority).label,
        "user": letter.user,
        "reason": letter.reason,
        "attempts": letter.attempts,
        "exception_class": letter.exception_class,
        "message": redact(letter.message, secrets),
        "died_at": letter.died_at,
        "expires_at": letter.expires_at,
        "state": letter.state,
        "replayed_at": letter.replayed_at,
        "replayed_by": letter.replayed_by if staff else None,
        "parameters_edited": letter.parameters_edited,
        "operation_id": letter.operation_id if staff else None,
        "discarded_at": letter.discarded_at,
        "discarded_by": letter.discarded_by if staff else None,
        "discard_reason": letter.discard_reason if staff else None,
    }


def operation(found: ReplayOperation) -> dict[str, Any]:
    """Return a replay of many and how far it has come."""
    return {
        "operation_id": found.id,
        "kind": "replay",
        "state": found.state,
        "filter": found.filter,
        "rate": found.pace,
        "stop_after_failures": found.stop_after_failures,
        "by": found.by,
        "reason": found.reason,
        "total": found.total,
        "replayed": found.replayed,
        "failed_again": found.failed_again,
        "skipped": found.skipped,
        "remaining": found.remaining,
        "waiting_for_the_first": found.is_waiting_for_the_first,
        "created_at": found.created_at,
        "finished_at": found.finished_at,
        "ended_by": found.ended_by,
    }
