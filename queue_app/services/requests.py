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

from dataclasses import dataclass

from django.db import InterfaceError, OperationalError

from queue_app import conf
from queue_app.core.events import EventName, Occasion, Run, accepted
from queue_app.exceptions import IdempotencyConflict, IndexUnavailable, InvalidTaskData, LimitExceeded, QueueFull
from queue_app.index import Backlog, Index, Request, Taken, get_index
from queue_app.rows.database import connection, fetch_all
from queue_app.services import events, journal
from queue_app.services.admission import numbers
from queue_app.services.read_request import FIELDS, ReadRequest, read_request, request_id_in
from queue_app.services.submit import Submitted, submit

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
    if journal.enabled():
        journal.told(answer.event for answer in answers)
    if events.enabled():
        index.publish([answer.event for answer in answers])
    for answer in answers:
        if answer.aside is not None:
            index.requests.set_aside(answer.entry, {"error": answer.aside}, keep=KEPT_ASIDE, max_bytes=KEPT_BYTES)
    done = [answer.entry for answer in answers if answer.aside is None]
    if done:
        index.requests.settle(done)


def _try(request: Request) -> Answer:
    try:
        asked = read_request(request.fields)
    except InvalidTaskData as error:
        return _rejected(request, error.code, error.field, aside=True)
    try:
        submitted = submit(asked.to_submission(), tell=False)
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


def _accepted(request: Request, asked: ReadRequest, task: Submitted) -> Answer:
    details = _identity(request)
    if task.queue_position is not None:
        details += ("queue_position", str(task.queue_position))
    if task.replayed:
        details += ("replayed", "1")
    occasion = accepted(task.task_type, task.queue, task.priority, asked.owner, task.status)
    return Answer(request.id, Run(occasion._replace(details=details), [task.id]))


def _rejected(request: Request, code: str, field: str, *, aside: bool = False, details: tuple[str, ...] = ()) -> Answer:
    """Say which field is at fault, by its own name only: a path into parameters would carry their keys."""
    name = field.partition(".")[0].partition("[")[0]
    details = (*_identity(request), "code", code, "field", name if name in FIELDS else "", *details)
    occasion = Occasion(EventName.REJECTED.value, "", "", "", "", "", "", "rejected", details)
    return Answer(request.id, Run(occasion, []), code if aside else None)


def _identity(request: Request) -> tuple[str, ...]:
    return ("entry", request.id, "request_id", request_id_in(request.fields))
