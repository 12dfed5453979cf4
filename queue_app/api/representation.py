"""The JSON of tasks, queues, limits, workers, dead letters and operations in answers, and its schemas."""

import uuid
from collections.abc import Sequence
from typing import Any, Final

from queue_app import models
from queue_app.api.access import PAYLOAD_FILTERS, may_view_payload
from queue_app.api.answers import (
    ANYTHING,
    BAND,
    COUNT,
    FLAG,
    FORMER,
    NUMBER,
    TEXT,
    Shape,
    answer,
    editable,
    enum,
    listed,
    maybe,
    named,
    page,
    record,
    ref,
)
from queue_app.api.serializers.base import component
from queue_app.api.serializers.kinds import NAME, OBJECT, TIME, UUID
from queue_app.api.serializers.tasks import SUMMARY_FIELDS
from queue_app.core.options import API_NAMES, FORMER_NAMES, OF_ROWS
from queue_app.core.priorities import Band
from queue_app.core.redaction import mask, redact, redact_value
from queue_app.core.states import Status
from queue_app.diagnose.health import PARTS
from queue_app.encryption.displayed import displayed_payload
from queue_app.models.dead_letter import STATE_NAMES
from queue_app.models.limits import SCOPES
from queue_app.models.operation import OperationKind
from queue_app.registry import all_sensitive_names
from queue_app.services.control.limits import PACE
from queue_app.services.control.pause import EVERYTHING
from queue_app.services.control.queues import OVERALL_FIELDS, POLICY_FIELDS, QUEUE_FIELDS
from queue_app.services.read.inspect import TaskDetail

#: What a task and a dead letter say about payloads that the caller may not read.
_HIDDEN: Final = FLAG | {
    "description": "Whether parameters, args, result, logs, messages and tracebacks are null because the task belongs"
    " to another user and the caller lacks queue_app.view_payload."
}
ARGS: Final = {
    "anyOf": [listed(ANYTHING), OBJECT],
    "description": "Positional arguments: a list, or an object by name if one of them is secret and masked.",
}
SOURCES: Final = {api: name for name, api in FORMER_NAMES.items()}

submitted: Final = Shape(
    models.Task, "id", "task_id", "status", "queue_position", "replayed", "task_type", "queue", "priority",
    "required_capabilities", "created_at", "trace_id", task_id="id", queue_position=maybe(COUNT), replayed=FLAG,
    task_type="spec.task_type", queue="spec.queue", priority="spec.band.label",
    required_capabilities="spec.capabilities", trace_id=TEXT,
)  # fmt: skip
answer("Submitted", submitted.schemas)
stored: Final = Shape(models.Task, "id", "task_id", "status", task_id="id")
summary: Final = Shape(
    models.Task, *SUMMARY_FIELDS, task_id="id", priority="band.label", effective_priority="effective_band.label",
    required_capabilities="capabilities", retry_count="failures", assigned_worker_id="worker_id",
    completed_at="finished_at", trace_id=TEXT,
)  # fmt: skip
answer("Task", summary.schemas, optional=SUMMARY_FIELDS)  # the parameter ``fields`` selects them
#: The options of a task that its summary does not say.
OPTIONS: Final = Shape(
    models.Task, *(API_NAMES[name] for name in OF_ROWS if API_NAMES[name] not in SUMMARY_FIELDS), **SOURCES
)
IN_FORCE: Final = Shape(
    models.Task, "timeout_seconds", "max_retries", "retry_delay", timeout_seconds=("timeout", NUMBER),
    max_retries=COUNT, retry_delay=NUMBER,
)  # fmt: skip
ATTEMPT: Final = Shape(models.TaskAttempt, "attempt", "worker_id", "started_at", "finished_at", "exception_class")
PROGRESS: Final = Shape(models.TaskProgress, "attempt", "fraction", "message", "updated_at", message=maybe(TEXT))
STEP: Final = Shape(models.StepResult, "position", "name", "kind", "attempt", "signal", "until", "stored_at", "done_at")
SIGNAL: Final = Shape(models.Signal, "id", "name", "sent_at", "taken_at")
sent: Final = Shape(
    models.Signal, "id", "signal_id", "awaited", signal_id=("id", FORMER | COUNT), awaited=("is_awaited", FLAG)
)
_TASK: Final = stored.schemas
_STORED: Final = answer("StoredTask", _TASK | {"replayed": FLAG})
answer("StoredTasks", {"count": COUNT, "tasks": listed(_STORED)})
answer("TaskCount", {"count": COUNT, "capped": FLAG})
answer("MovedTask", _TASK | {"priority": BAND, "queue_position": maybe(COUNT)})
answer("CancelledTask", _TASK | {"cancel_requested": FLAG, "deleted": FLAG})
answer("TaskSignal", sent.schemas | {"task_id": UUID})
answer("WorkflowSignal", sent.schemas | {"workflow_id": UUID})
_REASON: Final = answer("Reason", {"code": TEXT, "text": TEXT, "blocks": FLAG, "until": maybe(TIME), "details": OBJECT})
answer("Explanation", _TASK | {"blocked": FLAG, "next_start": maybe(TIME), "reasons": listed(_REASON)})
answer(
    "DecryptedTask",
    {"args": ANYTHING, "parameters": OBJECT, "result": ANYTHING, "steps": OBJECT}
    | dict.fromkeys(("signals", "attempts", "logs"), listed(OBJECT)),
)
component("TaskExport", TEXT)
component("EventStream", TEXT)
answer("Acknowledgement", {"status": TEXT})
_WAY: Final = answer("IndexWay", {"way": TEXT, "since": maybe(TIME), "redis_is_away": FLAG})
answer("Readiness", {
    "status": TEXT, **dict.fromkeys(PARTS, TEXT), "index_way": maybe(_WAY), "reasons": listed(TEXT),
})  # fmt: skip

PAUSE: Final = Shape(models.Limit, "paused", "paused_at", "paused_by", "paused_reason", "resume_at")
queue: Final = Shape(
    models.Queue, "name", "paused", "resume_at", "paused_at", "paused_by", "paused_reason", "current_concurrent",
    *QUEUE_FIELDS, current_concurrent=maybe(COUNT), **editable(models.Queue, QUEUE_FIELDS),
)  # fmt: skip
answer("Queue", queue.schemas)
POLICY: Final = Shape(models.PriorityPolicy, "priority", *POLICY_FIELDS, priority=BAND)
answer("Policy", POLICY.schemas)
limit: Final = Shape(
    models.Limit, "id", "scope", "name", "current_concurrent", *PACE, *PAUSE.names, **editable(models.Limit, PACE)
)
#: The answer to a removal of something that has a number.
answer("Deleted", {"id": COUNT, "deleted": FLAG})
answer("Limit", limit.schemas)
overall: Final = Shape(
    models.RuntimeSettings, "current_concurrent", *OVERALL_FIELDS, *PAUSE.names,
    **editable(models.RuntimeSettings, OVERALL_FIELDS),
)  # fmt: skip
answer("OverallLimits", overall.schemas)
answer("PauseState", {"scope": enum([EVERYTHING, *SCOPES]), "name": maybe(TEXT), **PAUSE.schemas})
_BANDS: Final = named(record({"depth": COUNT, "oldest_age_seconds": maybe(NUMBER)}))
_ONE_QUEUE: Final = {
    "name": TEXT, "paused": FLAG, "max_concurrent": maybe(COUNT), "active": COUNT, "depth": COUNT, "bands": _BANDS,
}  # fmt: skip
answer("QueueNumbers", _ONE_QUEUE)
_TOTALS: Final = {
    "total_enqueued": COUNT, "total_completed": COUNT, "oldest_enqueued_at": maybe(TIME), "last_updated": TIME,
}  # fmt: skip
answer("QueueStats", _ONE_QUEUE | _TOTALS, optional=_TOTALS)
_ALL_QUEUES: Final = {
    "depth": maybe(COUNT),
    "active": COUNT,
    "queues": maybe(_BANDS),
    "by_queue": maybe(listed(record(_ONE_QUEUE))),
    "workers": record(dict.fromkeys(("active", "draining", "dead", "total_capacity", "used_capacity"), COUNT)),
}
answer("Stats", {"index": TEXT, **_ALL_QUEUES, "throughput": named(COUNT)})
answer("AdminQueue", {**_ALL_QUEUES, "cap": maybe(COUNT), "by_priority": maybe(named(COUNT))})
answer(
    "Demand",
    {"queue": NAME}
    | dict.fromkeys(("queued", "runnable", "active_slots", "desired_slots", "desired_workers"), COUNT)
    | dict.fromkeys(("mean_seconds", "backlog_seconds"), NUMBER),
)

WORKER: Final = Shape(
    models.Worker, "id", "worker_id", "name", "status", "queues", "capabilities", "capacity", "host", "pid", "version",
    "started_at", "last_heartbeat", "stopped_at", "tasks_done", worker_id="id", capacity="concurrency",
    last_heartbeat="last_heartbeat_at",
)  # fmt: skip
answer("Worker", WORKER.schemas | {"current_tasks": listed(UUID), "current_load": COUNT})
LETTER: Final = Shape(
    models.DeadLetter, "id", "task_id", "task_type", "queue", "priority", "user", "reason", "attempts",
    "exception_class", "died_at", "expires_at", "state", "replayed_at", "replayed_by", "parameters_edited",
    "operation_id", "discarded_at", "discarded_by", "discard_reason", priority=BAND, state=enum(STATE_NAMES),
    **dict.fromkeys(("exception_class", "replayed_by", "discarded_by", "discard_reason"), maybe(TEXT)),
)  # fmt: skip
_LETTER: Final = LETTER.schemas | {"payload_hidden": _HIDDEN, "message": maybe(TEXT)}
answer("DeadLetter", _LETTER)
answer("DeadLetterDetail", _LETTER | {"task_status": maybe(TEXT), "args": maybe(ARGS), "parameters": maybe(OBJECT)})
answer("DiscardedDeadLetter", {"id": UUID, "task_id": UUID, "state": TEXT})
answer("ReplayedDeadLetter", {"id": UUID, "task_id": UUID, "status": TEXT, "queue_position": maybe(COUNT)})
_DISCARDED: Final = answer("Discarded", {"discarded": COUNT, "remaining": COUNT})
component("DiscardOrPreview", {"anyOf": [_DISCARDED, ref("Preview")]})
OPERATION: Final = Shape(
    models.Operation, "id", "operation_id", "kind", "target", "state", "filter", "arguments", "rate", "limit",
    "stop_after_failures", "by", "reason", "total", "changed", "skipped", "remaining", "failed_again",
    "waiting_for_the_first", "created_at", "finished_at", "ended_by", operation_id="id", filter=OBJECT,
    arguments=OBJECT, remaining=COUNT, waiting_for_the_first=("is_waiting_for_the_first", FLAG),
)  # fmt: skip
answer("Operation", OPERATION.schemas)
audit_entry: Final = Shape(
    models.AuditEntry, "id", "at", "by", "via", "action", "target", "target_id", "count", "before", "after", "reason",
    before=OBJECT, after=OBJECT,
)  # fmt: skip
answer("AuditEntry", audit_entry.schemas)

#: The former name of the cursor of a page of ticks or workflows.
NEXT_BEFORE: Final = maybe(FORMER | TEXT)
PREVIEW: Final = {"dry_run": FLAG, "count": COUNT}
answer("Preview", PREVIEW | {"sample": listed(UUID)})

for _name in ("Task", "Queue", "Policy", "Worker", "DeadLetter", "Operation", "AuditEntry", "Limit"):
    page(_name)


#: Everything about a task.
answer(
    "TaskDetail",
    summary.schemas
    | OPTIONS.schemas
    | IN_FORCE.schemas
    | {
        "queue_position": maybe(COUNT),
        "idempotency_key": maybe(TEXT),
        "unique_key": maybe(TEXT),
        "error": maybe(record({"class": TEXT, "message": TEXT, "retriable": FLAG})),
        "payload_hidden": _HIDDEN,
        "parameters": maybe(OBJECT),
        "args": maybe(ARGS),
        "metadata": maybe(OBJECT),
        "attempts": listed(
            record(
                ATTEMPT.schemas
                | {"trace_id": TEXT}
                | dict.fromkeys(("exception_class", "message", "traceback"), maybe(TEXT))
            )
        ),
        "progress": maybe(record(PROGRESS.schemas)),
        "logs": maybe(listed(record({"attempt": COUNT, "lines": listed(TEXT), "dropped": COUNT}))),
        "result": ANYTHING,
        "steps": listed(record(STEP.schemas | {"schema": maybe(listed(OBJECT)), "value": ANYTHING})),
        "signals": listed(record(SIGNAL.schemas | {"sent_by": maybe(TEXT), "payload": ANYTHING})),
    },
)


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


def _progress(found: models.TaskProgress | None, secrets: frozenset[str], *, visible: bool) -> dict[str, Any] | None:
    if found is None:
        return None
    return PROGRESS(found) | {"message": redact(found.message, secrets) if visible else None}


def worker(found: models.Worker, running: Sequence[tuple[uuid.UUID, int]]) -> dict[str, Any]:
    """Return a worker with the tasks that it runs, each an id and the slots that it takes."""
    load = {"current_tasks": [task_id for task_id, _ in running], "current_load": sum(slots for _, slots in running)}
    return WORKER(found) | load


def policy(found: models.PriorityPolicy) -> dict[str, Any]:
    """Return the defaults of a band's tasks."""
    return POLICY(found) | {"priority": Band(found.priority).label}


def pause(found: models.Limit | models.RuntimeSettings) -> dict[str, Any]:
    """Return the pause of a task type, a key or everything."""
    identity = (found.scope, found.name) if isinstance(found, models.Limit) else (EVERYTHING, None)
    return dict(zip(("scope", "name"), identity, strict=True)) | PAUSE(found)


def dead_letter(letter: models.DeadLetter, secrets: frozenset[str], user: Any) -> dict[str, Any]:
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
    letter: models.DeadLetter, secrets: frozenset[str], payload: tuple[Any, dict[str, Any]] | None, user: Any
) -> dict[str, Any]:
    """Return a dead letter with ``payload``, the (args, parameters) of its task if they are still stored."""
    visible = payload is not None and may_view_payload(user, letter.user)
    args, parameters = payload if payload is not None and visible else (None, None)
    return dead_letter(letter, secrets, user) | {"args": args, "parameters": parameters}


def operation(found: models.Operation, user: Any) -> dict[str, Any]:
    """Return the progress of a bulk action; payloads in its filter are hidden as in tasks."""
    wanted = mask(found.filter, all_sensitive_names())
    if not may_view_payload(user, found.by):
        wanted = {name: None if name in PAYLOAD_FILTERS else value for name, value in wanted.items()}
    replayed = {"replayed": found.changed} if found.kind == OperationKind.REPLAY else {}
    return OPERATION(found) | {"filter": wanted} | replayed
