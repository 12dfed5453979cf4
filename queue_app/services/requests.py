"""Enqueue and cancel the tasks that other services request in the request stream; the answers are events.

Crash points; after each, another consumer takes the request again after ``IDLE_SECONDS``:

- between the read and the commit nothing was stored, and the next try stores the task;
- between the commit and the acknowledgement, also before the answer, the request id is the idempotency key (unless the
  request names another key): the next try finds the task, answers once more, and acknowledges;
- a request that kills its consumer is tried alone from the second time on, and quarantined
  after ``MAX_TRIES``. Failures of PostgreSQL or Redis do not count as tries.

Two consumers take different requests. If a consumer is so slow that another takes its request over, the same key
prevents a second task. Requests that FLUSHALL deletes before they were consumed are lost; a service that must not
lose a request submits it over the API.
"""

import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from django.db import InterfaceError, OperationalError

from queue_app import conf, registry
from queue_app.core.events import EventName, Occasion, Run, accepted
from queue_app.core.ids import parse_id
from queue_app.core.options import FORMER_NAMES, Door, Duration, Whole, at
from queue_app.core.parsing import decode_text, load_json, timestamp
from queue_app.core.payload import BESIDE_BYTES
from queue_app.core.priorities import parse_band
from queue_app.core.records import Enqueued, NewTask
from queue_app.core.states import Status
from queue_app.encryption import applies_to
from queue_app.exceptions import (
    IdempotencyConflict,
    IndexUnavailable,
    InvalidTaskData,
    InvalidTransition,
    LimitExceeded,
    PayloadTooLarge,
    QueueFull,
    TaskNotFound,
    TaskQueueError,
    UniqueConflict,
)
from queue_app.index import Backlog, Index, Request, TakenRequests, get_index, redis_is_away, stream_index
from queue_app.models import Task
from queue_app.services.enqueue.admission import refusal_fields
from queue_app.services.enqueue.store import submit
from queue_app.services.enqueue.validate import check_request_id, check_task_type
from queue_app.services.lifecycle.actions import cancel
from queue_app.services.notify import events
from queue_app.sql.database import connection, fetch_all
from queue_app.telemetry import transition_log

#: Age at which the consumer of a taken but unsettled request is considered dead.
IDLE_SECONDS = 60.0
MAX_TRIES: Final = 5
#: Wait before taken requests are tried again, after PostgreSQL or Redis failed.
PAUSE_SECONDS = 5.0
#: Approximate number of quarantined requests to keep.
MAX_QUARANTINED = 1000
#: Maximum size of a quarantined request that is kept whole.
MAX_QUARANTINED_BYTES: Final = 64 * 1024

#: The fields of a request; those after ``task_type`` are optional.
FIELDS: Final = (
    "event",
    "request_id",
    "task_type",
    "parameters",
    "queue",
    "priority",
    "run_after",
    "delay",
    *at(Door.STREAM),
)
#: Names of fields in the HTTP API that are accepted too.
_OTHER_NAMES: Final = {api: name for name, api in FORMER_NAMES.items()}
#: The fields of a request to cancel.
CANCEL_FIELDS: Final = ("event", "request_id", "task_id", "user")
INBOUND: Final = (EventName.EXECUTION_REQUESTED, EventName.EXECUTION_CANCELLED)
_JSON: Final = {
    "parameters", "delay", *(name for name, each in at(Door.STREAM).items() if isinstance(each.kind, Whole | Duration))
}  # fmt: skip

type Fields = Sequence[tuple[bytes, bytes]]


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer to a request. With a ``quarantine_reason`` the request is quarantined, else it is done."""

    entry: str
    event: Run | None = None  # None: it was written before
    quarantine_reason: str | None = None


def consume(limit: int = 100) -> int:
    """Process at most ``limit`` requests; return how many were settled.

    Does nothing unless ``REQUESTS.ENABLED``, and while Redis is away and claims read the rows. Raises
    ``IndexUnavailable`` and database errors; unsettled requests are taken again later. An error of a single request is
    raised after the others are done.
    """
    if not conf.get().requests.enabled or redis_is_away.is_set():
        return 0
    if connection().in_atomic_block:
        raise RuntimeError("Requests are acknowledged when their tasks are committed: not inside a transaction.")
    fetch_all("SELECT 1")  # so that no request loses a try while PostgreSQL is away
    index = stream_index()
    seen = settled = 0
    while seen < limit:
        taken = index.requests.take(int(IDLE_SECONDS * 1000), limit - seen)
        if not taken.requests:
            break
        seen += len(taken.requests)
        settled += _process(index, taken)
    return settled


def backlog() -> Backlog:
    """Return how many requests wait and how many are quarantined; raise ``IndexUnavailable``."""
    return stream_index().requests.backlog()


def _process(index: Index, taken: TakenRequests) -> int:
    answers: list[Answer] = []
    failure: Exception | None = None
    for request in taken.requests:
        try:
            answers.append(
                _rejected(request, "crash_loop", "", quarantine=True) if taken.times > MAX_TRIES else _try(request)
            )
        except (OperationalError, InterfaceError, IndexUnavailable) as error:
            failure = error
            _postpone(index, taken, request)
            break
        except Exception as error:  # noqa: BLE001 - raised below; it concerns one request, not its neighbours
            failure = failure or error
    _settle(index, answers)
    if failure is not None:
        raise failure
    return len(answers)


def _postpone(index: Index, taken: TakenRequests, first: Request) -> None:
    """Leave a request and those after it for later, without counting a try: a server failed, not the request."""
    rest = taken.requests[taken.requests.index(first) :]
    idle = int((IDLE_SECONDS - PAUSE_SECONDS) * 1000)
    index.requests.postpone([request.id for request in rest], taken.times - 1, idle)


def _settle(index: Index, answers: list[Answer]) -> None:
    """Answer, then acknowledge: an answer may come twice, but must not be missing."""
    if not answers:
        return
    _write(index, [answer.event for answer in answers if answer.event is not None])
    for answer in answers:
        if answer.quarantine_reason is not None:
            index.requests.quarantine(
                answer.entry, {"error": answer.quarantine_reason}, keep=MAX_QUARANTINED, max_bytes=MAX_QUARANTINED_BYTES
            )
    done = [answer.entry for answer in answers if answer.quarantine_reason is None]
    if done:
        index.requests.acknowledge(done)


def _write(index: Index, runs: Sequence[Run]) -> None:
    if transition_log.enabled():
        transition_log.log_events(runs)
    if runs and events.enabled():
        index.publish(runs)


#: Errors that refuse a request for good.
_REFUSALS: Final = (
    InvalidTaskData, IdempotencyConflict, UniqueConflict, LimitExceeded, TaskNotFound, InvalidTransition
)  # fmt: skip


def _try(request: Request) -> Answer:
    try:
        values = _read(request.fields)
    except InvalidTaskData as error:
        return _rejected(request, error.code, error.field, quarantine=True)
    try:
        if values["event"] == EventName.EXECUTION_CANCELLED:
            return _cancel(request, values)
        submitted = submit(_new_task(values), before_push=partial(_answer_first, request))
    except _REFUSALS as error:
        details = refusal_fields(error) if isinstance(error, LimitExceeded) else ()
        return _rejected(request, error.code, _field_of(error, values), details=details)
    return Answer(request.id) if submitted.created else Answer(request.id, _accepted(request, submitted))


def _field_of(error: TaskQueueError, values: dict[str, Any]) -> str:
    match error:
        case InvalidTaskData():
            return error.field
        case IdempotencyConflict():
            return "idempotency_key" if "idempotency_key" in values else "request_id"
        case UniqueConflict():
            return "task_type"
        case LimitExceeded():
            return "queue" if isinstance(error, QueueFull) else "user"
    return "task_id" if "task_id" in values else "request_id"


def _cancel(request: Request, values: dict[str, Any]) -> Answer:
    """Cancel a task by its id, or by the id of the request that it came from; the event of the task is the answer."""
    for name in values:
        if name not in CANCEL_FIELDS:
            raise InvalidTaskData(name, "There is no such field.", code="unknown_field")
    owner = _owner(values)
    named = {"pk": _id_of(values["task_id"])} if "task_id" in values else {
        "idempotency_key": check_request_id(_required(values, "request_id"))
    }  # fmt: skip
    task_id = Task.objects.filter(**named, user=owner).values_list("pk", flat=True).first()
    if task_id is None:
        raise TaskNotFound("This user has no such task.")
    try:
        cancel(task_id)
    except InvalidTransition as error:
        if error.status != Status.CANCELLED:  # an earlier try may have cancelled it
            raise
    return Answer(request.id)


def _id_of(text: str) -> uuid.UUID:
    try:
        return parse_id(text)
    except InvalidTaskData as error:
        error.field = "task_id"
        raise


def _answer_first(request: Request, stored: Enqueued) -> None:
    """Write the answer before the task is pushed: no event of the task may come earlier.

    Raises ``IndexUnavailable``. The task is stored then, and a later try of the request answers.
    """
    entry = stored.entry
    if entry is not None:
        stored = stored._replace(queue_position=get_index().future_position(entry))
    _write(stream_index(), [_accepted(request, stored)])


def _accepted(request: Request, task: Enqueued) -> Run:
    details = _identity(request)
    if task.queue_position is not None:
        details += ("queue_position", str(task.queue_position))
    if not task.created:
        details += ("replayed", "1")
    occasion = accepted(task.spec.task_type, task.spec.queue, task.spec.priority, task.spec.user, task.status)
    return Run(occasion._replace(details=details), [task.id])


def _rejected(
    request: Request, code: str, field: str, *, quarantine: bool = False, details: tuple[str, ...] = ()
) -> Answer:
    """Name the wrong field without the path below it, which would reveal keys of the parameters."""
    name = field.partition(".")[0].partition("[")[0]
    details = (*_identity(request), "code", code, "field", name if name in {*FIELDS, *CANCEL_FIELDS} else "", *details)
    occasion = Occasion(EventName.REJECTED.value, "", "", "", "", "", "", "rejected", details)
    return Answer(request.id, Run(occasion, []), code if quarantine else None)


def _identity(request: Request) -> tuple[str, ...]:
    return ("entry", request.id, "request_id", _request_id(request.fields))


def _read(fields: Fields) -> dict[str, Any]:
    """Decode the fields of a request; raise ``InvalidTaskData`` if that fails. The values are not checked yet."""
    texts: dict[str, str] = {}
    for raw_name, raw in fields:
        given = decode_text(raw_name, field="", subject="A field's name")
        name = _OTHER_NAMES.get(given, given)
        if name in texts:
            raise InvalidTaskData(name, f"{name!r:.80} occurs twice.", code="duplicate_key")
        limit = conf.get().payload.wire_bytes if name == "parameters" else BESIDE_BYTES
        if len(raw) > limit:
            raise PayloadTooLarge(name, f"{name:.80} has {len(raw)} bytes; the limit is {limit}.", limit=limit)
        texts[name] = decode_text(raw, field=name, subject=name)
    if texts.get("event") not in INBOUND:
        raise InvalidTaskData("event", f"event must be {' or '.join(INBOUND)}.", code="unknown_event")
    depth = conf.get().payload.max_depth
    return {
        name: load_json(text, field=name, subject=name, max_depth=depth) if name in _JSON else text
        for name, text in texts.items()
    }


def _owner(values: dict[str, Any]) -> str:
    """Return the owner of the task; raise ``InvalidTaskData`` for a user who is not allowed."""
    named, pattern = values.get("user", ""), conf.get().requests.user
    if "*" in pattern:
        return pattern.replace("*", named)
    if named not in ("", pattern):
        raise InvalidTaskData("user", "Requests may not name this user.", code="user_not_allowed")
    return pattern


def _new_task(values: dict[str, Any]) -> NewTask:
    """Return the requested task; raise ``InvalidTaskData``. The services check the rest."""
    for name in values:
        if name not in FIELDS:
            raise InvalidTaskData(name, "There is no such field.", code="unknown_field")
    request_id = check_request_id(_required(values, "request_id"))
    if "run_after" in values and "delay" in values:
        raise InvalidTaskData("delay", "Give run_after or delay, not both.", code="conflicting_fields")
    task_type, user = _required(values, "task_type"), _owner(values)
    options = {name: value for name, value in values.items() if name not in {"event", "request_id", "task_type"}}
    if "priority" in values:
        options["priority"] = parse_band(values["priority"])
    if "capabilities" in values:
        options["capabilities"] = [name for name in values["capabilities"].split(",") if name]
    if "run_after" in values:
        options["run_after"] = timestamp(values["run_after"], "run_after")
    options = {"idempotency_key": request_id, **options, "user": user}
    registry.get_for_caller(check_task_type(task_type))
    if applies_to(task_type):
        message = "The task is encrypted, and a request holds its parameters in plain text; submit it over the API."
        raise InvalidTaskData("task_type", message, code="encrypted")
    return NewTask(task_type=task_type, **options)


def _request_id(fields: Fields) -> str:
    """Return the request id for the answer; empty if the request has no valid id."""
    try:
        return check_request_id(decode_text(dict(fields)[b"request_id"], field="request_id", subject="request_id"))
    except (KeyError, InvalidTaskData):
        return ""


def _required(values: dict[str, Any], name: str) -> Any:
    if name not in values:
        raise InvalidTaskData(name, f"{name} is required.", code="required")
    return values[name]
