"""The shapes of what is sent and answered, as JSON Schema."""

from __future__ import annotations

from typing import Any, Final

from queue_app.core.priorities import Band
from queue_app.core.states import Status
from queue_app.models.columns import CONCURRENCY_KEY_LENGTH, MAX_WEIGHT
from queue_app.models.operation import OperationKind, OperationState, OperationTarget
from queue_app.models.worker import WorkerStatus
from queue_app.services.enqueue.validate import MAX_RETRIES, MAX_TIMEOUT_SECONDS

Schema = dict[str, Any]
PROBLEM: Final = "Problem"

TEXT: Final[Schema] = {"type": "string"}
UUID: Final[Schema] = {"type": "string", "format": "uuid"}
TIME: Final[Schema] = {"type": "string", "format": "date-time"}
COUNT: Final[Schema] = {"type": "integer", "minimum": 0}
NUMBER: Final[Schema] = {"type": "number"}
FLAG: Final[Schema] = {"type": "boolean"}
OBJECT: Final[Schema] = {"type": "object"}
ANYTHING: Final[Schema] = {}
HIDDEN: Final[Schema] = {
    "type": "boolean",
    "description": "Whether parameters, args, result, logs, messages and tracebacks are null because the task is"
    " another user's and the caller lacks queue_app.view_payload.",
}
BAND: Final[Schema] = {"type": "string", "enum": [band.label for band in Band]}
STATUS: Final[Schema] = {"type": "string", "enum": [status.value for status in Status]}
NAME: Final[Schema] = {"type": "string", "minLength": 1, "maxLength": 100, "pattern": r"^[A-Za-z0-9][A-Za-z0-9_.\-]*$"}


def ref(name: str) -> Schema:
    """Return a reference to a component."""
    return {"$ref": f"#/components/schemas/{name}"}


def maybe(schema: Schema) -> Schema:
    """Return a schema that allows null as well."""
    return {"anyOf": [schema, {"type": "null"}]}


def listed(schema: Schema) -> Schema:
    """Return the schema of a list."""
    return {"type": "array", "items": schema}


def record(properties: dict[str, Schema], *, optional: tuple[str, ...] = (), closed: bool = False) -> Schema:
    """Return the schema of an object; all but the optional properties are always there."""
    schema: Schema = {
        "type": "object",
        "properties": properties,
        "required": [name for name in properties if name not in optional],
    }
    if not schema["required"]:
        del schema["required"]
    if closed:
        schema["additionalProperties"] = False
    return schema


def page(schema: Schema) -> Schema:
    """Return the schema of a page of a list."""
    return record({"results": listed(schema), "next_cursor": maybe(TEXT), "next": maybe(TEXT)})


_ARGS: Final[Schema] = {
    "anyOf": [listed(ANYTHING), OBJECT],
    "description": "Positional arguments: a list, or by name, an object, where one of them is secret, and masked.",
}
_SUMMARY: Final = {
    "task_id": UUID,
    "task_type": TEXT,
    "queue": TEXT,
    "status": STATUS,
    "priority": BAND,
    "effective_priority": BAND,
    "capabilities": listed(TEXT),
    "user": TEXT,
    "attempt": COUNT,
    "failures": COUNT,
    "worker_id": maybe(UUID),
    "created_at": TIME,
    "run_after": maybe(TIME),
    "queued_at": maybe(TIME),
    "started_at": maybe(TIME),
    "deadline": maybe(TIME),
    "finished_at": maybe(TIME),
    "cancel_requested_at": maybe(TIME),
}
_ATTEMPT: Final = record(
    {
        "attempt": COUNT,
        "worker_id": maybe(UUID),
        "started_at": TIME,
        "finished_at": TIME,
        "exception_class": TEXT,
        "message": maybe(TEXT),
        "traceback": maybe(TEXT),
    }
)
_SUBMISSION: Final = record(
    {
        "task_type": {"type": "string", "minLength": 1, "maxLength": 255},
        "parameters": OBJECT,
        "queue": NAME,
        "priority": {"type": "string", "enum": [*(band.label for band in Band), "medium"]},
        "capabilities": {"type": "array", "items": NAME, "maxItems": 20},
        "run_after": TIME,
        "delay": {"type": "number", "minimum": 0, "description": "Seconds from now; instead of run_after."},
        "timeout": {"type": "number", "exclusiveMinimum": 0, "maximum": MAX_TIMEOUT_SECONDS},
        "max_retries": {"type": "integer", "minimum": 0, "maximum": MAX_RETRIES},
        "idempotency_key": {"type": "string", "minLength": 1, "maxLength": 64},
        "concurrency_key": {"type": "string", "maxLength": CONCURRENCY_KEY_LENGTH},
        "weight": {"type": "integer", "minimum": 1, "maximum": MAX_WEIGHT, "description": "Slots of a worker."},
    },
    optional=(
        "parameters", "queue", "priority", "capabilities", "run_after", "delay", "timeout", "max_retries",
        "idempotency_key", "concurrency_key", "weight",
    ),
)  # fmt: skip
_BANDS: Final = {
    "type": "object",
    "additionalProperties": record({"depth": COUNT, "oldest_seconds": maybe(NUMBER)}),
}
_QUEUE_NUMBERS: Final = record(
    {
        "name": TEXT,
        "paused": FLAG,
        "max_concurrent": maybe(COUNT),
        "active": COUNT,
        "depth": COUNT,
        "bands": _BANDS,
    }
)
_WORKERS: Final = record({"active": COUNT, "draining": COUNT, "slots": COUNT})
_LETTER: Final = {
    "id": UUID,
    "task_id": UUID,
    "task_type": TEXT,
    "queue": TEXT,
    "priority": BAND,
    "user": TEXT,
    "reason": TEXT,
    "attempts": COUNT,
    "exception_class": TEXT,
    "payload_hidden": HIDDEN,
    "message": maybe(TEXT),
    "died_at": TIME,
    "expires_at": TIME,
    "state": {"type": "string", "enum": ["open", "replayed", "discarded"]},
    "replayed_at": maybe(TIME),
    "replayed_by": maybe(TEXT),
    "parameters_edited": FLAG,
    "operation_id": maybe(UUID),
    "discarded_at": maybe(TIME),
    "discarded_by": maybe(TEXT),
    "discard_reason": maybe(TEXT),
}


COMPONENTS: Final[dict[str, Schema]] = {
    PROBLEM: record(
        {
            "title": TEXT,
            "status": {"type": "integer"},
            "code": {"type": "string", "description": "Stable; see the reference of errors."},
            "detail": TEXT,
            "errors": listed(
                record({"field": TEXT, "code": TEXT, "message": TEXT, "limit": ANYTHING}, optional=("limit",))
            ),
            "task_status": TEXT,
        },
        optional=("errors", "task_status"),
    ),
    "Submission": _SUBMISSION,
    "Submitted": record(
        {
            "task_id": UUID,
            "status": STATUS,
            "queue_position": maybe(COUNT),
            "replayed": FLAG,
            "task_type": TEXT,
            "queue": TEXT,
            "priority": BAND,
            "capabilities": listed(TEXT),
            "created_at": TIME,
        }
    ),
    "Task": record(_SUMMARY, optional=tuple(_SUMMARY)),  # fields= chooses
    "TaskDetail": record(
        _SUMMARY
        | {
            "queue_position": maybe(COUNT),
            "idempotency_key": maybe(TEXT),
            "payload_hidden": HIDDEN,
            "parameters": maybe(OBJECT),
            "args": maybe(_ARGS),
            "options": record({"timeout": NUMBER, "max_retries": COUNT, "retry_delay": NUMBER}),
            "attempts": listed(_ATTEMPT),
            "progress": maybe(
                record({"attempt": COUNT, "fraction": NUMBER, "message": maybe(TEXT), "updated_at": TIME})
            ),
            "logs": maybe(listed(record({"attempt": COUNT, "lines": listed(TEXT), "dropped": COUNT}))),
            "result": ANYTHING,
        }
    ),
    "QueueNumbers": _QUEUE_NUMBERS,
    "Stats": record(
        {
            "index": TEXT,
            "depth": maybe(COUNT),
            "active": COUNT,
            "bands": maybe(_BANDS),
            "queues": maybe(listed(_QUEUE_NUMBERS)),
            "workers": _WORKERS,
            "throughput": {"type": "object", "additionalProperties": COUNT},
        }
    ),
    "AdminQueue": record(
        {
            "depth": maybe(COUNT),
            "active": COUNT,
            "cap": maybe(COUNT),
            "by_priority": maybe({"type": "object", "additionalProperties": COUNT}),
            "bands": maybe(_BANDS),
            "queues": maybe(listed(_QUEUE_NUMBERS)),
            "workers": _WORKERS,
        }
    ),
    "Queue": record({"name": TEXT, "paused": FLAG}),
    "Policy": record(
        {"priority": BAND, "max_retries": COUNT, "timeout_seconds": NUMBER, "promote_after_seconds": maybe(NUMBER)}
    ),
    "Worker": record(
        {"worker_id": UUID, "name": TEXT, "status": {"type": "string", "enum": [s.value for s in WorkerStatus]}}
    ),
    "Operation": record(
        {
            "operation_id": UUID,
            "kind": {"type": "string", "enum": [kind.value for kind in OperationKind]},
            "target": {"type": "string", "enum": [target.value for target in OperationTarget]},
            "state": {"type": "string", "enum": [state.value for state in OperationState]},
            "rate": maybe(NUMBER),
            "limit": maybe(COUNT),
            "stop_after_failures": COUNT,
            "by": TEXT,
            "reason": TEXT,
            "total": COUNT,
            "changed": COUNT,
            "skipped": COUNT,
            "remaining": COUNT,
            "failed_again": COUNT,
            "waiting_for_the_first": FLAG,
            "created_at": TIME,
            "finished_at": maybe(TIME),
        }
    ),
    "DeadLetter": record(_LETTER),
    "DeadLetterDetail": record(
        _LETTER | {"task_status": maybe(TEXT), "args": maybe(_ARGS), "parameters": maybe(OBJECT)}
    ),
}
