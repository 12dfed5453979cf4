"""The schemas of requests and answers, as JSON Schema; the schemas of rows are derived from the models."""

from collections.abc import Iterable
from typing import Any, Final

from django.db import models

from queue_app.api import representation
from queue_app.api.representation import Shape
from queue_app.api.serializers.base import Schema, shared
from queue_app.api.serializers.control import QueueEdit
from queue_app.api.serializers.kinds import OBJECT, TIME, UUID
from queue_app.core.priorities import BAND_NAMES
from queue_app.core.states import Status
from queue_app.models import (
    AuditEntry,
    DeadLetter,
    Operation,
    PriorityPolicy,
    Queue,
    Schedule,
    Signal,
    StepResult,
    Task,
    TaskAttempt,
    Worker,
    Workflow,
)
from queue_app.models.dead_letter import STATE_NAMES
from queue_app.models.fields import NamesField

PROBLEM: Final = "Problem"


def enum(values: Iterable[str]) -> Schema:
    """Return the schema of one of these words."""
    return {"type": "string", "enum": [str(value) for value in values]}


TEXT: Final[Schema] = {"type": "string"}
#: Beside the schema of a former name of a field.
FORMER: Final[Schema] = {"deprecated": True}
COUNT: Final[Schema] = {"type": "integer", "minimum": 0}
NUMBER: Final[Schema] = {"type": "number"}
FLAG: Final[Schema] = {"type": "boolean"}
ANYTHING: Final[Schema] = {}
STATUS: Final = enum(Status)
BAND: Final = enum(BAND_NAMES)
BANDS: Final = enum([*BAND_NAMES, "medium"])
_COLUMNS: Final[tuple[tuple[Any, Schema], ...]] = (
    (models.UUIDField, UUID),
    (models.DateTimeField, TIME),
    (models.BooleanField, FLAG),
    (models.IntegerField, COUNT),
    (models.FloatField, NUMBER),
    ((models.CharField, models.TextField), TEXT),
    (NamesField, {"type": "array", "items": TEXT}),
)


def ref(name: str) -> Schema:
    """Return a reference to a component."""
    return {"$ref": f"#/components/schemas/{name}"}


def maybe(schema: Schema) -> Schema:
    """Return a schema that allows null as well."""
    return {"anyOf": [schema, {"type": "null"}]}


def listed(schema: Schema) -> Schema:
    """Return the schema of a list."""
    return {"type": "array", "items": schema}


def record(properties: dict[str, Schema], *, optional: Iterable[str] = ()) -> Schema:
    """Return the schema of an object; all but the optional properties are always there."""
    required = [name for name in properties if name not in set(optional)]
    return {"type": "object", "properties": properties} | ({"required": required} if required else {})


def component(name: str, schema: Schema) -> Schema:
    """Name a schema, so that generated clients have a class of this name, and return a reference to it."""
    COMPONENTS[name] = schema
    return ref(name)


def answer(name: str, properties: dict[str, Schema], *, optional: Iterable[str] = ()) -> Schema:
    """Name the schema of an object, and return a reference to it."""
    return component(name, record(properties, optional=optional))


def page(name: str, **former: Schema) -> Schema:
    """Return a reference to the schema of a page of the component ``name``."""
    found = {"results": listed(ref(name)), "next_cursor": maybe(TEXT), "next": maybe(TEXT)}
    return answer(f"{name}Page", found | former, optional=former)


def columns(model: type[models.Model], shape: Shape, **others: Schema) -> dict[str, Schema]:
    """Return the schemas of a shape by the types of its columns; ``others`` are no columns, or look different."""
    return {name: others.get(name) or _column(model, shape.sources.get(name, name)) for name in shape.names} | others


def _column(model: type[models.Model], source: str) -> Schema:
    if source.endswith(".label"):
        return BAND
    field: Any = model._meta.get_field(source)  # noqa: SLF001 - Django's documented way to a model's fields
    schema = next(schema for kind, schema in _COLUMNS if isinstance(field, kind))
    if field.choices:
        schema = enum(value for value, _ in field.choices)
    return maybe(schema) if field.null else schema


#: The completed tasks that stay as they are, because what undoes them was given up. Only staff see why.
GAPS: Final = listed(record({"task_id": UUID, "name": TEXT, "reason": TEXT}, optional=("reason",)))
_HIDDEN: Final = FLAG | {
    "description": "Whether parameters, args, result, logs, messages and tracebacks are null because the task belongs"
    " to another user and the caller lacks queue_app.view_payload."
}
_ARGS: Final[Schema] = {
    "anyOf": [listed(ANYTHING), OBJECT],
    "description": "Positional arguments: a list, or an object by name if one of them is secret and masked.",
}
_NAMES: Final[Schema] = {"type": "array", "items": TEXT}
COUNTS: Final[Schema] = {"type": "object", "additionalProperties": COUNT}
TEXTS: Final[Schema] = {"type": "object", "additionalProperties": TEXT}
IDS: Final[Schema] = {"type": "object", "additionalProperties": UUID}
_SUMMARY: Final = columns(Task, representation.summary, trace_id=TEXT)
_ATTEMPT: Final = record(
    columns(
        TaskAttempt, representation.ATTEMPT, exception_class=maybe(TEXT), message=maybe(TEXT), traceback=maybe(TEXT),
        trace_id=TEXT,
    )
)  # fmt: skip
_PROGRESS: Final = {"attempt": COUNT, "fraction": NUMBER, "message": maybe(TEXT), "updated_at": TIME}
_STEP: Final = columns(StepResult, representation.STEP, schema=maybe(listed(OBJECT)), value=ANYTHING)
_SIGNAL: Final = columns(Signal, representation.SIGNAL, sent_by=maybe(TEXT), payload=ANYTHING)
_BANDS: Final = {
    "type": "object",
    "additionalProperties": record({"depth": COUNT, "oldest_age_seconds": maybe(NUMBER)}),
}
_QUEUE_FIELDS: Final = shared(QueueEdit).schema()["properties"]
_QUEUE_NUMBERS: Final = record(
    {"name": TEXT, "paused": FLAG, "max_concurrent": maybe(COUNT), "active": COUNT, "depth": COUNT, "bands": _BANDS}
)
_TOTALS: Final = {
    "total_enqueued": COUNT, "total_completed": COUNT, "oldest_enqueued_at": maybe(TIME), "last_updated": TIME,
}  # fmt: skip
_ALL_QUEUES: Final = {
    "depth": maybe(COUNT),
    "active": COUNT,
    "queues": maybe(_BANDS),
    "by_queue": maybe(listed(_QUEUE_NUMBERS)),
    "workers": record(dict.fromkeys(("active", "draining", "dead", "total_capacity", "used_capacity"), COUNT)),
}
_LETTER: Final = columns(
    DeadLetter, representation.LETTER, priority=BAND, state=enum(STATE_NAMES), payload_hidden=_HIDDEN,
    **dict.fromkeys(("exception_class", "message", "replayed_by", "discarded_by", "discard_reason"), maybe(TEXT)),
)  # fmt: skip
_OPERATION: Final = columns(
    Operation, representation.OPERATION, remaining=COUNT, waiting_for_the_first=FLAG, filter=OBJECT, arguments=OBJECT,
)  # fmt: skip
_SCHEDULE: Final = columns(
    Schedule, representation.SCHEDULE, words=TEXT, declared=FLAG, priority=BAND, args=maybe(_ARGS),
    parameters=maybe(OBJECT), instants=listed(TIME), overridden=listed(TEXT),
)  # fmt: skip
_SUBMITTED: Final = {
    "task_type": TEXT, "queue": TEXT, "required_capabilities": _NAMES, "queue_position": maybe(COUNT), "replayed": FLAG,
    "trace_id": TEXT,
}  # fmt: skip
_ERROR: Final = record({"field": TEXT, "code": TEXT, "message": TEXT, "limit": ANYTHING}, optional=["limit"])

COMPONENTS: Final[dict[str, Schema]] = {
    PROBLEM: record(
        {
            "title": TEXT,
            "status": {"type": "integer"},
            "code": {"type": "string", "description": "Stable; see the reference of errors."},
            "detail": TEXT,
            "errors": listed(_ERROR),
            "task_status": TEXT,
        },
        optional=("errors", "task_status"),
    ),
    "Submitted": record(columns(Task, representation.submitted, **_SUBMITTED)),
    "Task": record(_SUMMARY, optional=_SUMMARY),  # the parameter ``fields`` selects them
    "TaskDetail": record(
        _SUMMARY
        | {
            "queue_position": maybe(COUNT),
            "idempotency_key": maybe(TEXT),
            "unique_key": maybe(TEXT),
            "payload_hidden": _HIDDEN,
            "parameters": maybe(OBJECT),
            "args": maybe(_ARGS),
            **columns(Task, representation.OPTIONS, timeout_seconds=NUMBER, max_retries=COUNT, retry_delay=NUMBER),
            "error": maybe(record({"class": TEXT, "message": TEXT, "retriable": FLAG})),
            "metadata": maybe(OBJECT),
            "attempts": listed(_ATTEMPT),
            "progress": maybe(record(_PROGRESS)),
            "logs": maybe(listed(record({"attempt": COUNT, "lines": listed(TEXT), "dropped": COUNT}))),
            "result": ANYTHING,
            "steps": listed(record(_STEP)),
            "signals": listed(record(_SIGNAL)),
        }
    ),
    "QueueNumbers": _QUEUE_NUMBERS,
    "QueueStats": record(_QUEUE_NUMBERS["properties"] | _TOTALS, optional=_TOTALS),
    "Stats": record({"index": TEXT, **_ALL_QUEUES, "throughput": COUNTS}),
    "AdminQueue": record({**_ALL_QUEUES, "cap": maybe(COUNT), "by_priority": maybe(COUNTS)}),
    "Queue": record(columns(Queue, representation.queue, current_concurrent=maybe(COUNT), **_QUEUE_FIELDS)),
    "Policy": record(columns(PriorityPolicy, representation.POLICY, priority=BAND)),
    "Worker": record(columns(Worker, representation.WORKER, current_tasks=listed(UUID), current_load=COUNT)),
    "Operation": record(_OPERATION),
    "AuditEntry": record(columns(AuditEntry, representation.audit_entry, before=OBJECT, after=OBJECT)),
    "Schedule": record(_SCHEDULE),
    "Workflow": record(
        columns(
            Workflow,
            representation.WORKFLOW,
            **dict.fromkeys(("cancel_reason", "paused_by", "paused_reason"), maybe(TEXT)),
            gaps=GAPS,
        )
    ),
    "DeadLetter": record(_LETTER),
    "DeadLetterDetail": record(
        _LETTER | {"task_status": maybe(TEXT), "args": maybe(_ARGS), "parameters": maybe(OBJECT)}
    ),
}
