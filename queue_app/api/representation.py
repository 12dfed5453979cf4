"""The JSON of tasks, queues, limits, workers, dead letters and operations in answers."""

import json
import math
from collections.abc import Sequence
from operator import attrgetter
from typing import Any, Final
from uuid import UUID

from queue_app.api.visibility import PAYLOAD_FILTERS, may_view_payload
from queue_app.core.masking import mask
from queue_app.core.options import API_NAMES, FORMER_NAMES, OF_ROWS
from queue_app.core.priorities import Band
from queue_app.core.records import ClaimedTask
from queue_app.core.redaction import redact, redact_value
from queue_app.core.states import Status
from queue_app.core.steps import Step
from queue_app.displayed_payload import displayed_payload
from queue_app.models import (
    DeadLetter,
    Limit,
    Operation,
    PriorityPolicy,
    RuntimeSettings,
    Schedule,
    TaskProgress,
    Worker,
    Workflow,
)
from queue_app.models.operation import OperationKind
from queue_app.registry import all_sensitive_names
from queue_app.services.control.limits import PACE
from queue_app.services.control.pause import EVERYTHING
from queue_app.services.control.queues import OVERALL_FIELDS, POLICY_FIELDS, QUEUE_FIELDS
from queue_app.services.read.inspect import TaskDetail
from queue_app.services.schedules.edit import FIELDS, overridden


class Shape:
    """Make a dictionary of named attributes of a row; ``sources`` names attributes that differ from the key."""

    def __init__(self, *names: str, **sources: str) -> None:
        self.names, self.sources = names, sources
        self._read = attrgetter(*(sources.get(name, name) for name in names))

    def __call__(self, row: Any) -> dict[str, Any]:
        return dict(zip(self.names, self._read(row), strict=True))


submitted: Final = Shape(
    "id", "task_id", "status", "queue_position", "replayed", "task_type", "queue", "priority", "required_capabilities",
    "created_at", "trace_id", task_id="id", task_type="spec.task_type", queue="spec.queue", priority="spec.band.label",
    required_capabilities="spec.capabilities",
)  # fmt: skip
summary: Final = Shape(
    "id", "task_id", "task_type", "queue", "status", "priority", "effective_priority", "required_capabilities", "user",
    "workflow_id", "attempt", "retry_count", "assigned_worker_id", "created_at", "run_after", "queued_at", "started_at",
    "deadline", "completed_at", "cancel_requested_at", "trace_id", task_id="id", priority="band.label",
    effective_priority="effective_band.label", required_capabilities="capabilities", retry_count="failures",
    assigned_worker_id="worker_id", completed_at="finished_at",
)  # fmt: skip
SUMMARY_FIELDS: Final = summary.names
queue: Final = Shape(
    "name", "paused", "resume_at", "paused_at", "paused_by", "paused_reason", "current_concurrent", *QUEUE_FIELDS
)
WORKER: Final = Shape(
    "id", "worker_id", "name", "status", "queues", "capabilities", "capacity", "host", "pid", "version", "started_at",
    "last_heartbeat", "stopped_at", "tasks_done", worker_id="id", capacity="concurrency",
    last_heartbeat="last_heartbeat_at",
)  # fmt: skip


def worker(found: Worker, running: Sequence[tuple[UUID, int]]) -> dict[str, Any]:
    """Return a worker with the tasks that it runs, each an id and the slots that it takes."""
    load = {"current_tasks": [task_id for task_id, _ in running], "current_load": sum(slots for _, slots in running)}
    return WORKER(found) | load


POLICY: Final = Shape("priority", *POLICY_FIELDS)
PAUSE: Final = Shape("paused", "paused_at", "paused_by", "paused_reason", "resume_at")
limit: Final = Shape("id", "scope", "name", "current_concurrent", *PACE, *PAUSE.names)
overall: Final = Shape("current_concurrent", *OVERALL_FIELDS, *PAUSE.names)
ATTEMPT: Final = Shape("attempt", "worker_id", "started_at", "finished_at", "exception_class")
_SOURCES: Final = {api: name for name, api in FORMER_NAMES.items()}
#: The options of a task that its summary does not say.
OPTIONS: Final = Shape(*(API_NAMES[name] for name in OF_ROWS if API_NAMES[name] not in SUMMARY_FIELDS), **_SOURCES)
IN_FORCE: Final = Shape("timeout_seconds", "max_retries", "retry_delay", timeout_seconds="timeout")
STEP: Final = Shape("position", "name", "kind", "attempt", "signal", "until", "stored_at", "done_at")
SIGNAL: Final = Shape("id", "name", "sent_at", "taken_at")
PROGRESS: Final = Shape("attempt", "fraction", "message", "updated_at")
LETTER: Final = Shape(
    "id", "task_id", "task_type", "queue", "priority", "user", "reason", "attempts", "exception_class", "died_at",
    "expires_at", "state", "replayed_at", "replayed_by", "parameters_edited", "operation_id", "discarded_at",
    "discarded_by", "discard_reason",
)  # fmt: skip
OPERATION: Final = Shape(
    "id", "operation_id", "kind", "target", "state", "filter", "arguments", "rate", "limit", "stop_after_failures",
    "by", "reason", "total", "changed", "skipped", "remaining", "failed_again", "waiting_for_the_first", "created_at",
    "finished_at", "ended_by", operation_id="id", waiting_for_the_first="is_waiting_for_the_first",
)  # fmt: skip
SCHEDULE: Final = Shape(
    "id", "name", "words", "next_instant", "declared", *(API_NAMES.get(name, name) for name in FIELDS), *PAUSE.names,
    words="recurrence.words", declared="is_declared", **_SOURCES,
)  # fmt: skip
WORKFLOW: Final = Shape(
    "id", "name", "user", "state", "on_failure", "nodes", "max_concurrent", "created_at", "deadline", "held_at",
    "finished_at", "cancel_requested_at", "cancel_reason", "paused", "paused_at", "paused_by", "paused_reason",
)  # fmt: skip
tick: Final = Shape(
    "instant", "kind", "at", "late_seconds", "task_id", "reason", "first_instant", "count", "run_seconds"
)
stored: Final = Shape("id", "task_id", "status", task_id="id")
audit_entry: Final = Shape(
    "id", "at", "by", "via", "action", "target", "target_id", "count", "before", "after", "reason"
)
sent: Final = Shape("id", "signal_id", "awaited", signal_id="id", awaited="is_awaited")
REGISTERED: Final = Shape("id", "worker_id", "queues", "capabilities", "heartbeat_seconds", worker_id="id")
HEARTBEAT_REPLY: Final = Shape("cancel", "lost", "drain", "unserved", "again")
CLAIMED: Final = Shape(
    "id", "task_id", "attempt", "task_type", "queue", "priority", *(API_NAMES[name] for name in OF_ROWS), "args",
    "parameters", "retry_count", "created_at", "queued_at", "started_at", "leased_at", "trace_id", "traceparent",
    "metadata", task_id="id", retry_count="failures", **_SOURCES,
)  # fmt: skip


def step(found: Step) -> dict[str, Any]:
    """Return a step for the worker that runs the task."""
    return found._asdict() | {"value": None if found.value is None else json.loads(found.value)}


def claimed(task: ClaimedTask, polled_at: float) -> dict[str, Any]:
    """Return a task for the worker that runs it, with its arguments; its poll arrived at ``polled_at`` (monotonic)."""
    return CLAIMED(task) | {
        "start_within_ms": None if task.start_by is None else math.floor((task.start_by - polled_at) * 1000),
        "priority": Band(task.priority).label,
        "args": json.loads(task.args),
        "parameters": json.loads(task.parameters),
        "metadata": None if task.metadata is None else json.loads(task.metadata),
    }


def detail(found: TaskDetail, user: Any) -> dict[str, Any]:
    """Return everything about a task that ``user`` may read, without its secrets; a hidden payload is null.

    Tracebacks and log lines reveal the inside of the server, so only staff get them.
    """
    visible = may_view_payload(user, found.task.user)
    inside = visible and user.is_staff
    secrets, args, parameters = displayed_payload(found.task.task_type, found)
    return summary(found.task) | OPTIONS(found.task) | IN_FORCE(found.options) | {
        "queue_position": found.queue_position,
        "idempotency_key": found.task.idempotency_key,
        "unique_key": found.task.unique_key,
        "error": _error(found, secrets) if visible else None,
        "payload_hidden": not visible,
        "parameters": parameters if visible else None,
        "args": args if visible else None,
        "metadata": redact_value(found.metadata, secrets) if visible else None,
        "attempts": [
            ATTEMPT(attempt)
            | {
                "trace_id": found.task.trace_id,
                "exception_class": redact(attempt.exception_class, secrets) if visible else None,
                "message": redact(attempt.message, secrets) if visible else None,
                "traceback": redact(attempt.traceback, secrets) if inside else None,
            }
            for attempt in found.attempts
        ],
        "progress": _progress(found.progress, secrets, visible=visible),
        "logs": [
            {"attempt": log.attempt, "lines": redact(log.lines, secrets).split("\n"), "dropped": log.dropped}
            for log in found.logs
        ]
        if inside
        else None,
        "result": redact_value(found.result, secrets) if visible else None,
        "steps": [
            STEP(step) | {"schema": step.schema, "value": redact_value(step.value, secrets) if visible else None}
            for step in found.steps
        ],
        "signals": [
            SIGNAL(sent)
            | {
                "sent_by": sent.sent_by if user.is_staff else None,
                "payload": redact_value(sent.payload, secrets) if visible else None,
            }
            for sent in found.signals
        ],
    }  # fmt: skip


def _error(found: TaskDetail, secrets: frozenset[str]) -> dict[str, Any] | None:
    """Return the error of the last attempt, until the task completes."""
    if not found.attempts or found.task.status == Status.COMPLETED:
        return None
    last = found.attempts[-1]
    return {
        "class": redact(last.exception_class, secrets),
        "message": redact(last.message, secrets),
        "retriable": found.task.status != Status.FAILED,
    }


def _progress(found: TaskProgress | None, secrets: frozenset[str], *, visible: bool) -> dict[str, Any] | None:
    if found is None:
        return None
    return PROGRESS(found) | {"message": redact(found.message, secrets) if visible else None}


def schedule(found: Schedule, user: Any) -> dict[str, Any]:
    """Return a schedule; its parameters are null for those who may not read the payloads of its user's tasks."""
    visible = may_view_payload(user, found.user)
    _secrets, args, parameters = displayed_payload(found.task_type, found, hide_encrypted=True)
    return SCHEDULE(found) | {
        "priority": Band(found.priority).label,
        "args": args if visible else None,
        "parameters": parameters if visible else None,
        "overridden": [API_NAMES.get(name, name) for name in overridden(found)],
    }


def workflow(found: Workflow, user: Any) -> dict[str, Any]:
    """Return a workflow; only staff see who paused or cancelled it, and why."""
    hidden = () if user.is_staff else ("cancel_reason", "paused_by", "paused_reason")
    shown = ("task_id", "name", "reason") if user.is_staff else ("task_id", "name")
    gaps = [{key: gap[key] for key in shown} for gap in found.gaps]
    return WORKFLOW(found) | dict.fromkeys(hidden) | {"gaps": gaps}


def policy(found: PriorityPolicy) -> dict[str, Any]:
    """Return the defaults of a band's tasks."""
    return POLICY(found) | {"priority": Band(found.priority).label}


def pause(found: Limit | RuntimeSettings) -> dict[str, Any]:
    """Return the pause of a task type, a key or everything."""
    identity = (found.scope, found.name) if isinstance(found, Limit) else (EVERYTHING, None)
    return dict(zip(("scope", "name"), identity, strict=True)) | PAUSE(found)


def dead_letter(letter: DeadLetter, secrets: frozenset[str], user: Any) -> dict[str, Any]:
    """Return what ``user`` may read of a dead letter, without secrets; only staff see who handled it and why."""
    visible = may_view_payload(user, letter.user)
    hidden = () if user.is_staff else ("replayed_by", "operation_id", "discarded_by", "discard_reason")
    return (
        LETTER(letter)
        | {
            "priority": Band(letter.priority).label,
            "payload_hidden": not visible,
            "exception_class": redact(letter.exception_class, secrets) if visible else None,
            "message": redact(letter.message, secrets) if visible else None,
        }
        | dict.fromkeys(hidden)
    )


def letter_detail(
    letter: DeadLetter, secrets: frozenset[str], payload: tuple[Any, dict[str, Any]] | None, user: Any
) -> dict[str, Any]:
    """Return a dead letter with ``payload``, the (args, parameters) of its task if they are still stored."""
    visible = payload is not None and may_view_payload(user, letter.user)
    args, parameters = payload if payload is not None and visible else (None, None)
    return dead_letter(letter, secrets, user) | {"args": args, "parameters": parameters}


def operation(found: Operation, user: Any) -> dict[str, Any]:
    """Return the progress of a bulk action; payloads in its filter are hidden as in tasks."""
    wanted = mask(found.filter, all_sensitive_names())
    if not may_view_payload(user, found.by):
        wanted = {name: None if name in PAYLOAD_FILTERS else value for name, value in wanted.items()}
    replayed = {"replayed": found.changed} if found.kind == OperationKind.REPLAY else {}
    return OPERATION(found) | {"filter": wanted} | replayed
