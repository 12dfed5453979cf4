"""The endpoints for remote workers, and for whoever asks whether the process is ready."""

from __future__ import annotations

from typing import Any, Final

from queue_app.api.internal import parsing, views
from queue_app.api.schema.components import (
    ANYTHING,
    BAND,
    COUNT,
    FLAG,
    NAME,
    NUMBER,
    OBJECT,
    TEXT,
    TIME,
    UUID,
    Schema,
    listed,
    maybe,
    record,
)
from queue_app.api.schema.endpoint import Endpoint, query, within
from queue_app.api.views import health
from queue_app.exceptions import THROTTLE_SCOPES
from queue_app.services.read.health import PARTS

_WORKER: Final = within("worker_id")
_TYPE: Final[Schema] = {"type": "string", "minLength": 1, "maxLength": 255}
_WAIT: Final[Schema] = {"type": "number", "minimum": 0, "maximum": parsing.MAX_WAIT}
_ATTEMPT: Final[Schema] = {"type": "integer", "minimum": 1, "maximum": 2**31 - 1}
_CHANGING: Final = (404, 409, 413, 415)
_TASK: Final = record(
    {
        "task_id": UUID,
        "attempt": COUNT,
        "task_type": TEXT,
        "queue": TEXT,
        "priority": BAND,
        "capabilities": listed(TEXT),
        "user": TEXT,
        "args": listed(ANYTHING),
        "parameters": OBJECT,
        "timeout": NUMBER,
        "failures": COUNT,
        "max_retries": COUNT,
        "retry_delay": NUMBER,
        "concurrency_key": TEXT,
        "weight": COUNT,
        "created_at": TIME,
        "queued_at": TIME,
        "started_at": TIME,
        "traceparent": maybe(TEXT),
    }
)
_ERROR: Final = record(
    {
        "class": TEXT,
        "message": TEXT,
        "traceback": TEXT,
        "retriable": FLAG,
        "retry_after": {"type": "number", "minimum": 0},
        "reason": {"type": "string", "enum": ["error", "timeout", "cancelled"]},
    },
    optional=("message", "traceback", "retriable", "retry_after", "reason"),
)
_RESULT: Final = record(
    {
        "task_id": UUID,
        "attempt": _ATTEMPT,
        "status": {"type": "string", "enum": list(parsing.STATUSES)},
        "result": ANYTHING,
        "error": _ERROR,
        "snooze": {"type": "number", "minimum": 0, "description": "Seconds."},
        "throttle": record(
            {
                "scope": {"type": "string", "enum": list(THROTTLE_SCOPES)},
                "seconds": {"type": "number", "minimum": 0, "maximum": parsing.MAX_THROTTLE},
            }
        ),
    },
    optional=("result", "error", "snooze", "throttle"),
)
_PULSE: Final = {
    "running": listed(
        record(
            {
                "task_id": UUID,
                "attempt": _ATTEMPT,
                "progress": {"type": "number", "minimum": 0, "maximum": 1},
                "message": TEXT,
                "extend": {"type": "number", "minimum": 0, "description": "Seconds from now."},
                "lines": TEXT,
                "dropped": COUNT,
            },
            optional=("progress", "message", "extend", "lines", "dropped"),
        )
    ),
    "draining": FLAG,
    "tasks_done": COUNT,
}
_READY: Final = record({"status": TEXT, **dict.fromkeys(PARTS, TEXT), "reasons": listed(TEXT)})

WORKERS: Final[dict[tuple[Any, str], Endpoint]] = {
    (views.RegisterView, "POST"): Endpoint(
        id="register_worker", summary="Make a worker known", tag="remote workers", problems=(403, 413, 415),
        responses={
            201: record(
                {
                    "worker_id": UUID,
                    "queues": listed(TEXT),
                    "capabilities": listed(TEXT),
                    "heartbeat_seconds": NUMBER,
                    "missed_heartbeats": COUNT,
                }
            )
        },
        request=record(
            {
                "name": _TYPE,
                "task_types": {"type": "array", "items": _TYPE},
                "queues": {"type": "array", "items": NAME},
                "capabilities": {"type": "array", "items": NAME, "maxItems": 20},
                "concurrency": {"type": "integer", "minimum": 1, "maximum": 1000},
                "version": TEXT,
            },
            optional=("queues", "capabilities", "concurrency", "version"),
        ),
        example={"name": "thumbnails-1", "task_types": ["shop.tasks.thumbnail"], "concurrency": 4},
    ),
    (views.PollView, "POST"): Endpoint(
        id="poll", summary="Ask for tasks, and wait for the first", tag="remote workers", problems=_CHANGING,
        responses={200: record({"tasks": listed(_TASK)})}, parameters=(_WORKER,),
        request=record(
            {
                "want": {"type": "integer", "minimum": 1, "maximum": parsing.MAX_BATCH},
                "wait": _WAIT,
                "holding": listed(UUID),
            },
            optional=("want", "wait", "holding"),
        ),
        example={"want": 4, "wait": 20},
    ),
    (views.WaitView, "POST"): Endpoint(
        id="wait_for_call", summary="Sleep until there is work", tag="remote workers", problems=_CHANGING,
        responses={200: record({"called": FLAG})}, parameters=(_WORKER,), request=record({"wait": _WAIT}),
        example={"wait": 20},
    ),
    (views.ResultView, "POST"): Endpoint(
        id="report", summary="Report how an attempt ended", tag="remote workers", problems=_CHANGING,
        responses={200: record({"accepted": ANYTHING, "refused": listed(OBJECT)}, optional=("refused",))},
        parameters=(_WORKER,), request={"anyOf": [_RESULT, record({"results": listed(_RESULT)})]},
        example={
            "task_id": "019a2b00-0000-7000-8000-000000000000", "attempt": 1, "status": "completed", "result": {"n": 7}
        },
    ),
    (views.HeartbeatView, "POST"): Endpoint(
        id="heartbeat", summary="Say that the worker lives, and what it runs", tag="remote workers",
        problems=_CHANGING, parameters=(_WORKER,),
        request=record(
            _PULSE | {"task_types": {"type": "array", "items": _TYPE}}, optional=(*_PULSE, "task_types")
        ),
        responses={
            200: record(
                {
                    "status": TEXT, "cancel": listed(UUID), "cancel_requested": FLAG, "lost": listed(UUID),
                    "drain": FLAG, "unserved": listed(TEXT),
                }
            )
        },
        example={"running": [{"task_id": "019a2b00-0000-7000-8000-000000000000", "attempt": 1, "progress": 0.5}]},
    ),
    (views.DeregisterView, "POST"): Endpoint(
        id="deregister_worker", summary="Leave, and give back what is held", tag="remote workers",
        problems=_CHANGING, parameters=(_WORKER,), responses={200: record({"status": TEXT})},
        request=record(_PULSE, optional=tuple(_PULSE)), example={"tasks_done": 12},
    ),
    (health.ReadyView, "GET"): Endpoint(
        id="ready", summary="Whether the process can do its work", tag="operations",
        responses={200: _READY, 503: _READY},
        parameters=(query("require", TEXT, f"What has to be well too, with commas: {', '.join(PARTS[1:])}."),),
    ),
}  # fmt: skip
