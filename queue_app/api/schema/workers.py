"""The endpoints for remote workers."""

from __future__ import annotations

from typing import Any, Final

from queue_app.api.internal import parsing, views
from queue_app.api.schema.components import (
    ANYTHING,
    BAND,
    COUNT,
    DURATION,
    FLAG,
    NAME,
    NUMBER,
    OBJECT,
    TEXT,
    TIME,
    TYPE_NAME,
    UUID,
    columns,
    enum,
    listed,
    maybe,
    record,
    whole,
)
from queue_app.api.schema.endpoint import Endpoint
from queue_app.exceptions import THROTTLE_SCOPES
from queue_app.models import Task

_WAIT: Final = DURATION | {"maximum": parsing.MAX_WAIT}
_ATTEMPT: Final = {"task_id": UUID, "attempt": whole(1, 2**31 - 1)}
_EXAMPLE: Final = {"task_id": "019a2b00-0000-7000-8000-000000000000", "attempt": 1}
_TASK: Final = columns(
    Task, parsing.TASK.names,
    task_id=UUID, priority=BAND, args=listed(ANYTHING), parameters=OBJECT, timeout=NUMBER, max_retries=COUNT,
    retry_delay=NUMBER, queued_at=TIME, started_at=TIME, traceparent=maybe(TEXT),
)  # fmt: skip
_ERROR: Final = {
    "class": TEXT, "message": TEXT, "traceback": TEXT, "retriable": FLAG, "retry_after": DURATION,
    "reason": enum(["error", "timeout", "cancelled"]),
}  # fmt: skip
_THROTTLE: Final = {"scope": enum(THROTTLE_SCOPES), "seconds": DURATION | {"maximum": parsing.MAX_THROTTLE}}
_OUTCOME: Final = {
    "result": ANYTHING, "error": record(_ERROR, optional=_ERROR.keys() - {"class"}),
    "snooze": DURATION | {"description": "Seconds."}, "throttle": record(_THROTTLE),
}  # fmt: skip
_RESULT: Final = record(_ATTEMPT | {"status": enum(parsing.STATUSES)} | _OUTCOME, optional=_OUTCOME)
_PROGRESS: Final = {
    "progress": DURATION | {"maximum": 1}, "message": TEXT,
    "extend": DURATION | {"description": "Seconds from now."}, "lines": TEXT, "dropped": COUNT,
}  # fmt: skip
_REPORT: Final = {
    "running": listed(record(_ATTEMPT | _PROGRESS, optional=_PROGRESS)), "draining": FLAG, "tasks_done": COUNT
}  # fmt: skip
_HEARTBEAT: Final = _REPORT | {"task_types": listed(TYPE_NAME)}
_POLL: Final = {"want": whole(1, parsing.MAX_BATCH), "wait": _WAIT, "holding": listed(UUID)}
_OPTIONS: Final = {
    "queues": listed(NAME), "capabilities": listed(NAME, 20), "concurrency": whole(1, 1000), "version": TEXT
}  # fmt: skip
_REGISTERED: Final = {
    "worker_id": UUID, "queues": listed(TEXT), "capabilities": listed(TEXT), "heartbeat_seconds": NUMBER,
    "missed_heartbeats": COUNT,
}  # fmt: skip
_ORDERS: Final = {
    "status": TEXT, "cancel": listed(UUID), "cancel_requested": FLAG, "lost": listed(UUID), "drain": FLAG,
    "unserved": listed(TEXT),
}  # fmt: skip

WORKERS: Final[dict[tuple[Any, str], Endpoint]] = {
    (views.RegisterView, "POST"): Endpoint(
        id="register_worker", answer=record(_REGISTERED), status=201, problems=(403,),
        request=record({"name": TYPE_NAME, "task_types": listed(TYPE_NAME), **_OPTIONS}, optional=_OPTIONS),
        example={"name": "thumbnails-1", "task_types": ["shop.tasks.thumbnail"], "concurrency": 4},
    ),
    (views.PollView, "POST"): Endpoint(
        id="poll", answer=record({"tasks": listed(record(_TASK))}), problems=(409,),
        request=record(_POLL, optional=_POLL), example={"want": 4, "wait": 20},
    ),
    (views.WaitView, "POST"): Endpoint(
        id="wait_for_call", answer=record({"called": FLAG}), request=record({"wait": _WAIT}), example={"wait": 20},
        problems=(409,),
    ),
    (views.ResultView, "POST"): Endpoint(
        id="report", answer=record({"accepted": ANYTHING, "refused": listed(OBJECT)}, optional=["refused"]),
        request={"anyOf": [_RESULT, record({"results": listed(_RESULT)})]}, problems=(409,),
        example=_EXAMPLE | {"status": "completed", "result": {"n": 7}},
    ),
    (views.HeartbeatView, "POST"): Endpoint(
        id="heartbeat", answer=record(_ORDERS), request=record(_HEARTBEAT, optional=_HEARTBEAT), problems=(409,),
        example={"running": [_EXAMPLE | {"progress": 0.5}]},
    ),
    (views.DeregisterView, "POST"): Endpoint(
        id="deregister_worker", answer=record({"status": TEXT}), request=record(_REPORT, optional=_REPORT),
        example={"tasks_done": 12}, problems=(409,),
    ),
}  # fmt: skip
