"""What remote workers send, checked; and tasks as they get them."""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping
from typing import Any, Final

from queue_app import conf
from queue_app.api.fields import Reader, switch, task_id, text
from queue_app.api.internal.checks import MAX_RUNNING, ids, integer, list_of, long_text, number
from queue_app.core.clock import now
from queue_app.core.payload import dump_json
from queue_app.core.priorities import Band
from queue_app.core.records import ClaimedTask, Outcome, ProgressReport, TaskFailure, Throttling
from queue_app.exceptions import MAX_DEFER_SECONDS, THROTTLE_SCOPES, InvalidTaskData
from queue_app.services.enqueue.validate import check_capabilities, check_queue_name, check_task_type
from queue_app.services.repair.remote import Registration

MAX_BATCH: Final = 100
MAX_TYPES: Final = 10_000
MAX_WAIT: Final = 60.0
MAX_EXTENSION: Final = 366 * 86_400.0
MESSAGE: Final = 2_000
TRACEBACK: Final = 20_000
STATUSES: Final = ("completed", "failed", "snoozed", "throttled", "released")
#: A remote worker closes gates that others pass too, for no longer than this (s).
MAX_THROTTLE: Final = 3600.0


def task(claimed: ClaimedTask) -> dict[str, Any]:
    """Return a task as a worker gets it; with its parameters, which are the point of it."""
    return {
        "task_id": claimed.id,
        "attempt": claimed.attempt,
        "task_type": claimed.task_type,
        "queue": claimed.queue,
        "priority": Band(claimed.priority).label,
        "capabilities": claimed.capabilities,
        "user": claimed.user,
        "args": json.loads(claimed.args),
        "parameters": json.loads(claimed.parameters),
        "timeout": claimed.timeout,
        "failures": claimed.failures,
        "max_retries": claimed.max_retries,
        "retry_delay": claimed.retry_delay,
        "concurrency_key": claimed.concurrency_key,
        "weight": claimed.weight,
        "created_at": claimed.created_at,
        "queued_at": claimed.queued_at,
        "started_at": claimed.started_at,
        "traceparent": claimed.trace,
    }


def registration(data: Mapping[str, Any]) -> Registration:
    """Return what a worker registers as."""
    reader = Reader(data)
    reader.refuse_others(("name", "queues", "capabilities", "task_types", "concurrency", "version"))
    wanted = Registration(
        name=reader.required("name", text, "")[:200],
        queues=tuple(
            sorted(reader.optional("queues", lambda v, n: {check_queue_name(q) for q in list_of(1000)(v, n)}) or ())
        ),
        capabilities=tuple(
            sorted(reader.optional("capabilities", lambda v, n: check_capabilities(list_of(100)(v, n))) or ())
        ),
        task_types=tuple(sorted(reader.required("task_types", _types, set[str]()))),
        concurrency=reader.optional("concurrency", integer(1, 1000)) or 1,
        version=(reader.optional("version", text) or "")[:50],
    )
    reader.finish()
    return wanted


def polling(data: Mapping[str, Any]) -> tuple[int, float, list[uuid.UUID] | None]:
    """Return (want, wait, holding) of a poll."""
    reader = Reader(data)
    reader.refuse_others(("want", "wait", "holding"))
    want = reader.optional("want", integer(1, MAX_BATCH)) if data.get("want") is not None else 1
    wait = reader.optional("wait", number(0, MAX_WAIT)) or 0.0
    holding = reader.optional("holding", ids)
    reader.finish()
    return want or 1, wait, holding


def seconds_to_wait(data: Mapping[str, Any]) -> float:
    """Return how long a worker wants to wait for a call."""
    reader = Reader(data)
    reader.refuse_others(("wait",))
    wait = reader.required("wait", number(0, MAX_WAIT), 0.0)
    reader.finish()
    return wait


def results(data: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the reported attempts of a request, which holds one, or ``results`` with many; each is checked."""
    if "results" not in data:
        return [_result(data)]
    reader = Reader(data)
    reader.refuse_others(("results",))
    items: list[Any] = reader.required("results", list_of(MAX_BATCH), [])
    reader.finish()
    return [_result(item) for item in items]


def _result(data: Any) -> dict[str, Any]:
    if not isinstance(data, dict):
        raise InvalidTaskData("results", "Each result must be an object.", code="object_expected")
    reader = Reader(data)
    reader.refuse_others(("task_id", "attempt", "status", "result", "error", "snooze", "throttle"))
    found: dict[str, Any] = {
        "task_id": reader.required("task_id", task_id, uuid.UUID(int=0)),
        "attempt": reader.required("attempt", integer(1, 2**31 - 1), 1),
        "status": reader.required("status", _status, ""),
        "snooze": reader.optional("snooze", number(0, MAX_DEFER_SECONDS)),
        "throttle": reader.optional("throttle", _throttle),
        "error": reader.optional("error", _error),
        "result": None,
    }
    if data.get("result") is not None:
        found["result"] = reader.optional("result", lambda v, n: dump_json(v, field=n, limits=conf.get().payload))
    if found["status"] == "failed" and found["error"] is None:
        reader.note(InvalidTaskData("error", "A failed attempt needs an error.", code="required"))
    if found["status"] == "snoozed" and found["snooze"] is None:
        reader.note(InvalidTaskData("snooze", "A snoozed attempt needs snooze, in seconds.", code="required"))
    if found["status"] == "throttled" and found["throttle"] is None:
        reader.note(InvalidTaskData("throttle", "A throttled attempt needs throttle: scope, seconds.", code="required"))
    reader.finish()
    return found


def _throttle(value: Any, name: str) -> Throttling:
    if not isinstance(value, dict):
        raise InvalidTaskData(name, f"{name} must be an object.", code="object_expected")
    reader = Reader(value)
    reader.refuse_others(("scope", "seconds"))
    throttle = Throttling(
        reader.required("scope", _scope, "type"), reader.required("seconds", number(0, MAX_THROTTLE), 0.0)
    )
    reader.finish()
    return throttle


def _scope(value: Any, name: str) -> str:
    if value not in THROTTLE_SCOPES:
        raise InvalidTaskData(name, f"{name} must be one of {', '.join(THROTTLE_SCOPES)}.", code="unknown_status")
    return str(value)


def _status(value: Any, name: str) -> str:
    if value not in STATUSES:
        raise InvalidTaskData(name, f"{name} must be one of {', '.join(STATUSES)}.", code="unknown_status")
    return str(value)


def _error(value: Any, name: str) -> TaskFailure:
    if not isinstance(value, dict):
        raise InvalidTaskData(name, f"{name} must be an object.", code="object_expected")
    reader = Reader(value)
    reader.refuse_others(("class", "message", "traceback", "retriable", "retry_after", "reason"))
    retriable = reader.optional("retriable", switch)
    failure = TaskFailure(
        exception_class=reader.required("class", long_text(255), ""),
        message=reader.optional("message", long_text(MESSAGE)) or "",
        traceback=reader.optional("traceback", long_text(TRACEBACK)) or "",
        retriable=True if retriable is None else retriable,
        retry_after=reader.optional("retry_after", number(0, MAX_DEFER_SECONDS)),
        reason=reader.optional("reason", _reason) or "error",
    )
    reader.finish()
    return failure


def _reason(value: Any, name: str) -> str:
    if value not in {"error", "timeout", "cancelled"}:
        raise InvalidTaskData(name, f"{name} must be error, timeout or cancelled.", code="unknown_status")
    return str(value)


def outcome(claimed: ClaimedTask, reported: dict[str, Any]) -> Outcome:
    """Return the outcome that a worker reported of an attempt that holds its task.

    Raises ``InvalidTaskData`` for a throttle of the key of a task that has none.
    """
    throttle = reported["throttle"] if reported["status"] == "throttled" else None
    if throttle is not None and throttle.scope == "key" and not claimed.concurrency_key:
        message = f"Task {claimed.id} has no concurrency_key: throttle its type or its queue."
        raise InvalidTaskData("throttle", message, code="required")
    failure = reported["error"] if reported["status"] == "failed" else None
    snooze = reported["snooze"] if reported["status"] == "snoozed" else None
    result = reported["result"] if reported["status"] == "completed" else None
    return Outcome(claimed, claimed.started_at, now(), result, failure=failure, snooze=snooze, throttle=throttle)


def pulse(data: Mapping[str, Any], worker_id: uuid.UUID) -> tuple[list[ProgressReport], bool, int]:
    """Return (notes, draining, tasks done) of a heartbeat."""
    reader = Reader(data)
    reader.refuse_others(("running", "draining", "tasks_done", "task_types"))
    running = reader.optional("running", list_of(MAX_RUNNING)) or []
    draining = reader.optional("draining", switch) or False
    done = reader.optional("tasks_done", integer(0, 2**62)) or 0
    reader.finish()
    return [_note(item, worker_id) for item in running], draining, done


def learnt(data: Mapping[str, Any]) -> tuple[str, ...] | None:
    """Return the task types that a worker serves from this heartbeat on; ``None`` when it says nothing of them."""
    reader = Reader(data)
    types = reader.optional("task_types", _types)
    reader.finish()
    return None if types is None else tuple(sorted(types))


def _types(value: Any, name: str) -> set[str]:
    return {check_task_type(item) for item in list_of(MAX_TYPES)(value, name)}


def _note(data: Any, worker_id: uuid.UUID) -> ProgressReport:
    if not isinstance(data, dict):
        raise InvalidTaskData("running", "Each running task must be an object.", code="object_expected")
    limits = conf.get().task_logs
    reader = Reader(data)
    reader.refuse_others(("task_id", "attempt", "progress", "message", "extend", "lines", "dropped"))
    extend = reader.optional("extend", number(0, 1e12)) or 0.0
    lines = reader.optional("lines", long_text(limits.max_characters))
    note = ProgressReport(
        task_id=reader.required("task_id", task_id, uuid.UUID(int=0)),
        attempt=reader.required("attempt", integer(1, 2**31 - 1), 1),
        worker_id=worker_id,
        progress=reader.optional("progress", number(0, 1)),
        message=reader.optional("message", long_text(200)) or "",
        lines=lines if limits.max_lines else None,
        dropped=reader.optional("dropped", integer(0, 2**31 - 1)) or 0,
        extend=min(extend, MAX_EXTENSION),
    )
    reader.finish()
    return note
