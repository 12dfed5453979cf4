"""The requests of remote workers, checked; and the JSON of the tasks that they get."""

import json
import uuid
from collections.abc import Mapping
from typing import Any, Final

from queue_app import conf
from queue_app.api.fields import (
    Reader,
    between,
    choice,
    integer,
    json_object,
    list_of,
    number,
    switch,
    tail_of_text,
    text,
    uuid_of,
)
from queue_app.api.representation import Shape
from queue_app.core.clock import now
from queue_app.core.payload import dump_json
from queue_app.core.priorities import Band
from queue_app.core.records import ClaimedTask, Outcome, ProgressReport, TaskFailure, Throttling
from queue_app.exceptions import MAX_DEFER_SECONDS, THROTTLE_SCOPES, InvalidTaskData
from queue_app.services.enqueue.validate import check_capabilities, check_queue_name, check_task_type
from queue_app.services.repair.remote import Registration

MAX_BATCH: Final = 100
MAX_RUNNING: Final = 1000
MAX_TYPES: Final = 10_000
MAX_WAIT: Final = 60.0
MAX_EXTENSION: Final = 366 * 86_400.0
MESSAGE: Final = 2_000
TRACEBACK: Final = 20_000
STATUSES: Final = ("completed", "failed", "snoozed", "throttled", "released")
#: Maximum seconds for which a remote worker may throttle a gate: other workers' tasks pass the same gate.
MAX_THROTTLE: Final = 3600.0
#: Status of a result -> the field that it requires, and the error without it.
_REQUIRED: Final = {
    "failed": ("error", "A failed attempt needs an error."),
    "snoozed": ("snooze", "A snoozed attempt needs snooze, in seconds."),
    "throttled": ("throttle", "A throttled attempt needs throttle: scope, seconds."),
}
_seconds_to_wait: Final = between(0, MAX_WAIT, number)
_deferral: Final = between(0, MAX_DEFER_SECONDS, number)
_attempt: Final = between(1, 2**31 - 1, integer)
_NO_ID: Final = uuid.UUID(int=0)
REGISTERED: Final = Shape("worker_id", "queues", "capabilities", "heartbeat_seconds", worker_id="id")
HEARTBEAT_REPLY: Final = Shape("cancel", "lost", "drain", "unserved")
TASK: Final = Shape(
    "task_id", "attempt", "task_type", "queue", "priority", "capabilities", "user", "args", "parameters", "timeout",
    "failures", "max_retries", "retry_delay", "concurrency_key", "weight", "created_at", "queued_at", "started_at",
    "traceparent", task_id="id", traceparent="trace",
)  # fmt: skip


def task(claimed: ClaimedTask) -> dict[str, Any]:
    """Return a task for the worker that runs it, with its arguments."""
    return TASK(claimed) | {
        "priority": Band(claimed.priority).label,
        "args": json.loads(claimed.args),
        "parameters": json.loads(claimed.parameters),
    }


def registration(data: Mapping[str, Any]) -> Registration:
    """Return the worker that the body describes."""
    with Reader(data, ("name", "queues", "capabilities", "task_types", "concurrency", "version")) as reader:
        queues = reader.optional("queues", lambda v, n: {check_queue_name(queue) for queue in list_of(1000)(v, n)})
        capabilities = reader.optional("capabilities", lambda v, n: check_capabilities(list_of(100)(v, n)))
        return Registration(
            name=reader.required("name", text, "")[:200],
            queues=tuple(sorted(queues or ())),
            capabilities=tuple(sorted(capabilities or ())),
            task_types=tuple(sorted(reader.required("task_types", _types, set[str]()))),
            concurrency=reader.optional("concurrency", between(1, 1000, integer)) or 1,
            version=(reader.optional("version", text) or "")[:50],
        )


def polling(data: Mapping[str, Any]) -> tuple[int, float, list[uuid.UUID] | None]:
    """Return (want, wait, holding) of a poll."""
    with Reader(data, ("want", "wait", "holding")) as reader:
        want = reader.optional("want", between(1, MAX_BATCH, integer)) or 1
        wait = reader.optional("wait", _seconds_to_wait) or 0.0
        return want, wait, reader.optional("holding", _ids)


def seconds_to_wait(data: Mapping[str, Any]) -> float:
    """Return how long a worker wants to wait for a call."""
    with Reader(data, ("wait",)) as reader:
        return reader.required("wait", _seconds_to_wait, 0.0)


def results(data: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the reported attempts, each checked; the body is one of them, or holds many in ``results``."""
    if "results" not in data:
        return [_result(data)]
    with Reader(data, ("results",)) as reader:
        items: list[Any] = reader.required("results", list_of(MAX_BATCH), [])
    return [_result(item) for item in items]


def _result(data: Any) -> dict[str, Any]:
    known = ("task_id", "attempt", "status", "result", "error", "snooze", "throttle")
    with Reader(json_object(data, "results"), known) as reader:
        found: dict[str, Any] = {
            "task_id": reader.required("task_id", uuid_of, _NO_ID),
            "attempt": reader.required("attempt", _attempt, 1),
            "status": reader.required("status", choice(STATUSES, "unknown_status"), ""),
            "snooze": reader.optional("snooze", _deferral),
            "throttle": reader.optional("throttle", _throttle),
            "error": reader.optional("error", _error),
            "result": reader.optional("result", lambda v, n: dump_json(v, field=n, limits=conf.get().payload)),
        }
        required, message = _REQUIRED.get(found["status"], ("task_id", ""))
        if found[required] is None:
            reader.add_error(InvalidTaskData(required, message, code="required"))
    return found


def _throttle(value: Any, name: str) -> Throttling:
    with Reader(json_object(value, name), ("scope", "seconds")) as reader:
        scope = reader.required("scope", choice(THROTTLE_SCOPES, "unknown_status"), "type")
        return Throttling(scope, reader.required("seconds", between(0, MAX_THROTTLE, number), 0.0))


def _error(value: Any, name: str) -> TaskFailure:
    known = ("class", "message", "traceback", "retriable", "retry_after", "reason")
    with Reader(json_object(value, name), known) as reader:
        retriable = reader.optional("retriable", switch)
        return TaskFailure(
            exception_class=reader.required("class", tail_of_text(255), ""),
            message=reader.optional("message", tail_of_text(MESSAGE)) or "",
            traceback=reader.optional("traceback", tail_of_text(TRACEBACK)) or "",
            retriable=retriable is not False,
            retry_after=reader.optional("retry_after", _deferral),
            reason=reader.optional("reason", choice(("error", "timeout", "cancelled"), "unknown_status")) or "error",
        )


def outcome(claimed: ClaimedTask, reported: dict[str, Any]) -> Outcome:
    """Return the outcome that a worker reported; raise ``InvalidTaskData`` for a throttle by key without a key."""
    throttle = reported["throttle"] if reported["status"] == "throttled" else None
    if throttle is not None and throttle.scope == "key" and not claimed.concurrency_key:
        message = f"Task {claimed.id} has no concurrency_key: throttle its type or its queue."
        raise InvalidTaskData("throttle", message, code="required")
    failure = reported["error"] if reported["status"] == "failed" else None
    snooze = reported["snooze"] if reported["status"] == "snoozed" else None
    result = reported["result"] if reported["status"] == "completed" else None
    return Outcome(claimed, claimed.started_at, now(), result, failure=failure, snooze=snooze, throttle=throttle)


def heartbeat(data: Mapping[str, Any], worker_id: uuid.UUID) -> tuple[list[ProgressReport], bool, int]:
    """Return (progress reports, draining, tasks done) of a heartbeat."""
    with Reader(data, ("running", "draining", "tasks_done", "task_types")) as reader:
        running = reader.optional("running", list_of(MAX_RUNNING)) or []
        draining = reader.optional("draining", switch) or False
        done = reader.optional("tasks_done", between(0, 2**62, integer)) or 0
    return [_progress(item, worker_id) for item in running], draining, done


def served_types(data: Mapping[str, Any]) -> tuple[str, ...] | None:
    """Return the task types that a worker serves from this heartbeat on; ``None`` if the heartbeat names none."""
    with Reader(data, data) as reader:
        types = reader.optional("task_types", _types)
    return None if types is None else tuple(sorted(types))


def _types(value: Any, name: str) -> set[str]:
    return {check_task_type(item) for item in list_of(MAX_TYPES)(value, name)}


def _ids(value: Any, name: str) -> list[uuid.UUID]:
    return [uuid_of(item, name) for item in list_of(MAX_RUNNING)(value, name)]


def _progress(data: Any, worker_id: uuid.UUID) -> ProgressReport:
    limits = conf.get().task_logs
    known = ("task_id", "attempt", "progress", "message", "extend", "lines", "dropped")
    with Reader(json_object(data, "running"), known) as reader:
        extend = reader.optional("extend", between(0, 1e12, number)) or 0.0
        lines = reader.optional("lines", tail_of_text(limits.max_characters))
        return ProgressReport(
            task_id=reader.required("task_id", uuid_of, _NO_ID),
            attempt=reader.required("attempt", _attempt, 1),
            worker_id=worker_id,
            progress=reader.optional("progress", between(0, 1, number)),
            message=reader.optional("message", tail_of_text(200)) or "",
            lines=lines if limits.max_lines else None,
            dropped=reader.optional("dropped", between(0, 2**31 - 1, integer)) or 0,
            extend=min(extend, MAX_EXTENSION),
        )
