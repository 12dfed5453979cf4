"""Carry out what other services ask for in the request stream; the answers are events.

Crash points, each healed by the request being taken again after ``IDLE_SECONDS``:

- between the read and the commit nothing was stored, and the next try stores it;
- between the commit and the answer, or the answer and the acknowledgement, the request id is
  the idempotency key (unless the request names another): the next try finds the task that is
  there, answers once more, and acknowledges;
- a request that kills its consumer is tried alone from the second time on, and set aside
  after ``MAX_TRIES``. Trouble with PostgreSQL or Redis is not counted as a try.

Two consumers at once take different requests. One that takes so long that another takes its
request over does no harm, by the same key. What FLUSHALL takes from the stream before it was
consumed is lost with Redis: a service that must not lose a request submits it over the API.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from django.db import InterfaceError, OperationalError

from queue_app import conf, transition_log
from queue_app.core.events import EventName, Occasion, Run, accepted
from queue_app.core.parsing import decode_text, load_json, timestamp
from queue_app.core.payload import BESIDE_BYTES
from queue_app.core.priorities import parse_band
from queue_app.core.records import Enqueued, NewTask
from queue_app.exceptions import (
    IdempotencyConflict,
    IndexUnavailable,
    InvalidTaskData,
    LimitExceeded,
    PayloadTooLarge,
    QueueFull,
)
from queue_app.index import Backlog, Index, Request, Taken, get_index
from queue_app.services.enqueue.admission import numbers
from queue_app.services.enqueue.submit import submit
from queue_app.services.enqueue.validate import check_request_id
from queue_app.services.notify import events
from queue_app.sql.database import connection, fetch_all

#: A request that was taken so long ago and not settled lost its consumer.
IDLE_SECONDS = 60.0
MAX_TRIES = 5
#: After trouble with the servers, what was taken is tried again so much later.
PAUSE_SECONDS = 5.0
#: About so many requests are kept aside, none with more than so many bytes.
KEPT_ASIDE = 1000
KEPT_BYTES = 64 * 1024


@dataclass(frozen=True, slots=True)
class Answer:
    """What is told about a request; ``aside`` is why it is set aside, ``None`` when it is done."""

    entry: str
    event: Run
    aside: str | None = None


def consume(limit: int = 100) -> int:
    """Carry out at most ``limit`` requests; return how many were settled.

    Does nothing unless ``REQUESTS.ENABLED``. Raises ``IndexUnavailable`` and database errors;
    what was not settled is taken again later. The errors of a single request are raised once
    the others are done.
    """
    if not conf.get().requests.enabled:
        return 0
    if connection().in_atomic_block:
        raise RuntimeError("Requests are acknowledged when their tasks are committed: not inside a transaction.")
    fetch_all("SELECT 1")  # no try is counted against a request while PostgreSQL is away
    index = get_index()
    seen = settled = 0
    while seen < limit:
        taken = index.requests.take(int(IDLE_SECONDS * 1000), limit - seen)
        if not taken.requests:
            break
        seen += len(taken.requests)
        settled += _carry_out(index, taken)
    return settled


def backlog() -> Backlog:
    """Return how many requests wait and how many were set aside; raise ``IndexUnavailable``."""
    return get_index().requests.backlog()


def _carry_out(index: Index, taken: Taken) -> int:
    answers: list[Answer] = []
    failure: Exception | None = None
    for request in taken.requests:
        try:
            answers.append(_give_up(request) if taken.times > MAX_TRIES else _try(request))
        except (OperationalError, InterfaceError, IndexUnavailable) as error:
            failure = error
            _postpone(index, taken, request)
            break
        except Exception as error:  # noqa: BLE001 - raised below; it is one request's, not its neighbours'
            failure = failure or error
    _settle(index, answers)
    if failure is not None:
        raise failure
    return len(answers)


def _postpone(index: Index, taken: Taken, first: Request) -> None:
    """Leave a request and those after it for when the servers are well again; it is not their fault."""
    rest = taken.requests[taken.requests.index(first) :]
    idle = int((IDLE_SECONDS - PAUSE_SECONDS) * 1000)
    index.requests.postpone([request.id for request in rest], taken.times - 1, idle)


def _settle(index: Index, answers: list[Answer]) -> None:
    """Answer, then acknowledge: an answer may come twice, but not be missing."""
    if not answers:
        return
    if transition_log.enabled():
        transition_log.log_events(answer.event for answer in answers)
    if events.enabled():
        index.publish([answer.event for answer in answers])
    for answer in answers:
        if answer.aside is not None:
            index.requests.quarantine(answer.entry, {"error": answer.aside}, keep=KEPT_ASIDE, max_bytes=KEPT_BYTES)
    done = [answer.entry for answer in answers if answer.aside is None]
    if done:
        index.requests.acknowledge(done)


def _try(request: Request) -> Answer:
    try:
        asked = read_request(request.fields)
    except InvalidTaskData as error:
        return _rejected(request, error.code, error.field, aside=True)
    try:
        submitted = submit(asked.to_new_task(), write_events=False)
    except InvalidTaskData as error:
        return _rejected(request, error.code, error.field)
    except IdempotencyConflict as error:
        return _rejected(request, error.code, "idempotency_key" if asked.has_own_key else "request_id")
    except LimitExceeded as error:
        field = "queue" if isinstance(error, QueueFull) else "user"
        return _rejected(request, error.code, field, details=numbers(error))
    return _accepted(request, asked, submitted)


def _give_up(request: Request) -> Answer:
    return _rejected(request, "crash_loop", "", aside=True)


def _accepted(request: Request, asked: ReadRequest, task: Enqueued) -> Answer:
    details = _identity(request)
    if task.queue_position is not None:
        details += ("queue_position", str(task.queue_position))
    if not task.created:
        details += ("replayed", "1")
    occasion = accepted(task.spec.task_type, task.spec.queue, task.spec.priority, asked.owner, task.status)
    return Answer(request.id, Run(occasion._replace(details=details), [task.id]))


def _rejected(request: Request, code: str, field: str, *, aside: bool = False, details: tuple[str, ...] = ()) -> Answer:
    """Say which field is at fault, by its own name only: a path into parameters would carry their keys."""
    name = field.partition(".")[0].partition("[")[0]
    details = (*_identity(request), "code", code, "field", name if name in FIELDS else "", *details)
    occasion = Occasion(EventName.REJECTED.value, "", "", "", "", "", "", "rejected", details)
    return Answer(request.id, Run(occasion, []), code if aside else None)


def _identity(request: Request) -> tuple[str, ...]:
    return ("entry", request.id, "request_id", request_id_in(request.fields))


#: What a request may say; the fields after ``task_type`` may be left out.
FIELDS: Final = (
    "event",
    "request_id",
    "task_type",
    "parameters",
    "queue",
    "priority",
    "user",
    "capabilities",
    "run_after",
    "delay",
    "timeout",
    "max_retries",
    "idempotency_key",
    "concurrency_key",
    "weight",
)
_JSON: Final = ("parameters", "delay", "timeout", "max_retries", "weight")

Fields = Sequence[tuple[bytes, bytes]]


@dataclass(frozen=True, slots=True)
class ReadRequest:
    """A request that can be read; whether it can be carried out is yet to be seen."""

    values: dict[str, Any]

    @property
    def owner(self) -> str:
        """The user whom the task shall belong to; raises ``InvalidTaskData`` for one who is not allowed."""
        said, pattern = self.values.get("user", ""), conf.get().requests.user
        if "*" in pattern:
            return pattern.replace("*", said)
        if said not in ("", pattern):
            raise InvalidTaskData("user", "Requests may not name this user.", code="user_not_allowed")
        return pattern

    @property
    def has_own_key(self) -> bool:
        """Whether the request names an idempotency key beside its id."""
        return "idempotency_key" in self.values

    def to_new_task(self) -> NewTask:
        """Return what the request asks for; raise ``InvalidTaskData``. The services check the rest."""
        values = self.values
        for name in values:
            if name not in FIELDS:
                raise InvalidTaskData(name, "There is no such field.", code="unknown_field")
        request_id = check_request_id(_required(values, "request_id"))
        if "run_after" in values and "delay" in values:
            raise InvalidTaskData("delay", "Give run_after or delay, not both.", code="conflicting_fields")
        capabilities = values.get("capabilities")
        return NewTask(
            task_type=_required(values, "task_type"),
            parameters=values.get("parameters", {}),
            user=self.owner,
            queue=values.get("queue"),
            priority=parse_band(values["priority"]) if "priority" in values else None,
            capabilities=None if capabilities is None else [name for name in capabilities.split(",") if name],
            run_after=timestamp(values["run_after"], "run_after") if "run_after" in values else None,
            delay=values.get("delay"),
            timeout=values.get("timeout"),
            max_retries=values.get("max_retries"),
            idempotency_key=values.get("idempotency_key", request_id),
            concurrency_key=values.get("concurrency_key"),
            weight=values.get("weight"),
        )


def read_request(fields: Fields) -> ReadRequest:
    """Decode the fields of a request; raise ``InvalidTaskData`` when that cannot be done."""
    values: dict[str, Any] = {}
    for raw_name, raw in fields:
        name = decode_text(raw_name, field="", subject="A field's name")
        if name in values:
            raise InvalidTaskData(name, f"{name!r:.80} occurs twice.", code="duplicate_key")
        _check_size(name, raw)
        values[name] = decode_text(raw, field=name, subject=name)
    if values.get("event") != EventName.EXECUTION_REQUESTED:
        raise InvalidTaskData("event", f"event must be {EventName.EXECUTION_REQUESTED}.", code="unknown_event")
    depth = conf.get().payload.max_depth
    return ReadRequest(
        {
            name: load_json(text, field=name, subject=name, max_depth=depth) if name in _JSON else text
            for name, text in values.items()
        }
    )


def request_id_in(fields: Fields) -> str:
    """Return the id that an answer can repeat; an empty one where there is none that may be repeated."""
    try:
        return check_request_id(decode_text(dict(fields)[b"request_id"], field="request_id", subject="request_id"))
    except (KeyError, InvalidTaskData):
        return ""


def _check_size(name: str, raw: bytes) -> None:
    limit = conf.get().payload.wire_bytes if name == "parameters" else BESIDE_BYTES
    if len(raw) > limit:
        raise PayloadTooLarge(name, f"{name:.80} has {len(raw)} bytes; the limit is {limit}.", limit=limit)


def _required(values: dict[str, Any], name: str) -> Any:
    if name not in values:
        raise InvalidTaskData(name, f"{name} is required.", code="required")
    return values[name]
