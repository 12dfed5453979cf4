"""How tasks and queues look in answers."""

from __future__ import annotations

from typing import Any, Final

from queue_app.api.visibility import PAYLOAD_FILTERS, may_view_payload
from queue_app.core.masking import mask
from queue_app.core.priorities import Band
from queue_app.core.records import Enqueued
from queue_app.core.redaction import redact, redact_value
from queue_app.displayed_payload import displayed_payload
from queue_app.models import (
    DeadLetter,
    Operation,
    PriorityPolicy,
    Queue,
    Task,
    TaskAttempt,
    TaskLog,
    TaskProgress,
    Worker,
)
from queue_app.models.operation import OperationKind
from queue_app.registry import all_sensitive_names
from queue_app.services.control.queues import POLICY_FIELDS, QUEUE_FIELDS
from queue_app.services.read.inspect import TaskDetail


def submitted(task: Enqueued) -> dict[str, Any]:
    """Return the answer to a submission."""
    return {
        "task_id": task.id,
        "status": task.status,
        "queue_position": task.queue_position,
        "replayed": not task.created,
        "task_type": task.spec.task_type,
        "queue": task.spec.queue,
        "priority": Band(task.spec.priority).label,
        "capabilities": task.spec.capabilities,
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


#: The names of what ``summary`` tells.
SUMMARY_FIELDS: Final = (
    "task_id",
    "task_type",
    "queue",
    "status",
    "priority",
    "effective_priority",
    "capabilities",
    "user",
    "attempt",
    "failures",
    "worker_id",
    "created_at",
    "run_after",
    "queued_at",
    "started_at",
    "deadline",
    "finished_at",
    "cancel_requested_at",
)


def detail(found: TaskDetail, user: Any) -> dict[str, Any]:
    """Return all about one task that ``user`` may read, without its secrets.

    Tracebacks and log lines show the inside of the server, so only staff get them. A payload
    that is hidden is null, wherever it stands.
    """
    shown = may_view_payload(user, found.task.user)
    inside = shown and user.is_staff
    secrets, args, parameters = displayed_payload(found.task.task_type, found)
    return summary(found.task) | {
        "queue_position": found.queue_position,
        "idempotency_key": found.task.idempotency_key,
        "payload_hidden": not shown,
        "parameters": parameters if shown else None,
        "args": args if shown else None,
        "options": {
            "timeout": found.options.timeout,
            "max_retries": found.options.max_retries,
            "retry_delay": found.options.retry_delay,
        },
        "attempts": [_attempt(attempt, secrets, shown=shown, inside=inside) for attempt in found.attempts],
        "progress": _progress(found.progress, secrets, shown=shown),
        "logs": [_log(log, secrets) for log in found.logs] if inside else None,
        "result": redact_value(found.result, secrets) if shown else None,
    }


def _progress(found: TaskProgress | None, secrets: frozenset[str], *, shown: bool) -> dict[str, Any] | None:
    if found is None:
        return None
    return {
        "attempt": found.attempt,
        "fraction": found.fraction,
        "message": redact(found.message, secrets) if shown else None,
        "updated_at": found.updated_at,
    }


def _log(found: TaskLog, secrets: frozenset[str]) -> dict[str, Any]:
    """Return what an attempt logged: like tracebacks, it shows the inside of the server."""
    return {"attempt": found.attempt, "lines": redact(found.lines, secrets).split("\n"), "dropped": found.dropped}


def _attempt(attempt: TaskAttempt, secrets: frozenset[str], *, shown: bool, inside: bool) -> dict[str, Any]:
    return {
        "attempt": attempt.attempt,
        "worker_id": attempt.worker_id,
        "started_at": attempt.started_at,
        "finished_at": attempt.finished_at,
        "exception_class": attempt.exception_class,
        "message": redact(attempt.message, secrets) if shown else None,
        "traceback": redact(attempt.traceback, secrets) if inside else None,
    }


def queue(found: Queue) -> dict[str, Any]:
    """Return a queue, whether it is paused, and what staff may edit of it."""
    return {
        "name": found.name,
        "paused": found.paused,
        "resume_at": found.resume_at,
        "paused_at": found.paused_at,
        "paused_by": found.paused_by,
        "paused_reason": found.paused_reason,
    } | {name: getattr(found, name) for name in QUEUE_FIELDS}


def policy(found: PriorityPolicy) -> dict[str, Any]:
    """Return what holds for the tasks of a band."""
    return {"priority": Band(found.priority).label} | {name: getattr(found, name) for name in POLICY_FIELDS}


def worker(found: Worker) -> dict[str, Any]:
    """Return a worker."""
    names = ("name", "status", "queues", "capabilities", "concurrency", "host", "pid", "version", "started_at")
    return {"worker_id": found.id} | {
        name: getattr(found, name) for name in (*names, "last_heartbeat_at", "stopped_at", "tasks_done")
    }


def dead_letter(letter: DeadLetter, secrets: frozenset[str], user: Any) -> dict[str, Any]:
    """Return what ``user`` may read of a dead letter, without secrets.

    Who of the staff did something with it, and why, is told to staff.
    """
    staff, shown = user.is_staff, may_view_payload(user, letter.user)
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
        "payload_hidden": not shown,
        "message": redact(letter.message, secrets) if shown else None,
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


def letter_detail(
    letter: DeadLetter, secrets: frozenset[str], payload: tuple[Any, dict[str, Any]] | None, user: Any
) -> dict[str, Any]:
    """Return a dead letter with what its task was called with, (args, parameters), where there is still a record."""
    shown = payload is not None and may_view_payload(user, letter.user)
    args, parameters = payload if payload is not None and shown else (None, None)
    return dead_letter(letter, secrets, user) | {"args": args, "parameters": parameters}


def operation(found: Operation, user: Any) -> dict[str, Any]:
    """Return an action on many tasks or dead letters, and how far it has come.

    What others searched for in payloads is hidden like these.
    """
    wanted = mask(found.filter, all_sensitive_names())
    if not may_view_payload(user, found.by):
        wanted = {name: None if name in PAYLOAD_FILTERS else value for name, value in wanted.items()}
    return {
        "operation_id": found.id,
        "kind": found.kind,
        "target": found.target,
        "state": found.state,
        "filter": wanted,
        "arguments": found.arguments,
        "rate": found.rate,
        "limit": found.limit,
        "stop_after_failures": found.stop_after_failures,
        "by": found.by,
        "reason": found.reason,
        "total": found.total,
        "changed": found.changed,
        "skipped": found.skipped,
        "remaining": found.remaining,
        "failed_again": found.failed_again,
        "waiting_for_the_first": found.is_waiting_for_the_first,
        "created_at": found.created_at,
        "finished_at": found.finished_at,
        "ended_by": found.ended_by,
    } | ({"replayed": found.changed} if found.kind == OperationKind.REPLAY else {})
