"""Lifecycle events: ids, names and numbers; never parameters, results or error texts.

Most events of one call differ only in the task id. The common fields are stored once per run of events.
"""

import re
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from typing import Final, NamedTuple, Self

from queue_app.core import trace
from queue_app.core.priorities import BAND_NAMES
from queue_app.core.records import ClaimedTask, Outcome, TaskRef
from queue_app.core.states import Status


class EventName(StrEnum):
    """Kinds of events."""

    EXECUTION_REQUESTED = "ExecutionRequested"  # on the request stream only: another service requests a task
    EXECUTION_CANCELLED = "ExecutionCancelled"  # likewise: it requests to cancel one
    ACCEPTED = "Accepted"
    REJECTED = "Rejected"
    STARTED = "Started"
    COMPLETED = "Completed"
    FAILED = "Failed"
    TIMED_OUT = "TimedOut"
    CANCELLED = "Cancelled"
    PROMOTED = "Promoted"
    DEAD_LETTERED = "DeadLettered"
    REQUEUED = "Requeued"  # the attempt was given back, its worker died, or the task was replayed
    EXPIRED = "Expired"
    LIMIT_ADAPTED = "LimitAdapted"  # about no task: the value of an adaptive limit changed


class Ended(NamedTuple):
    """An attempt that ended, and what became of its task: the record that every observer hears."""

    outcome: Outcome
    status: Status
    retry_in: float | None = None  # seconds until the retry

    @property
    def name(self) -> EventName:
        """The kind of its event."""
        if self.status is Status.COMPLETED:
            return EventName.COMPLETED
        if self.status is Status.CANCELLED:
            return EventName.CANCELLED
        if self.outcome.failure is None:
            return EventName.REQUEUED
        return EventName.TIMED_OUT if self.outcome.failure.reason == "timeout" else EventName.FAILED


class Occasion(NamedTuple):
    """Fields that the events of a run share, as texts of the stream entry."""

    name: str
    task_type: str
    queue: str
    priority: str  # the name of the band
    user: str
    attempt: str
    worker: str
    status: str
    details: tuple[str, ...] = ()  # further fields: name, value, name, value, ...


class Run(NamedTuple):
    """Events that differ only in the task id and the trace, in order; without task ids, one event about no task.

    ``traces`` has the trace context of each task, or nothing if the occasion, or no caller, names one.
    """

    occasion: Occasion
    task_ids: list[uuid.UUID]
    traces: Sequence[str | None] = ()


#: Name of a run that is no event and only adds to counters; its details are name, number, name, number, ...
COUNTED: Final = ""


def counted(counts: Mapping[str, int]) -> Run:
    """Return a run that adds to the counters of the cluster (``core.counters``)."""
    details = tuple(str(part) for item in counts.items() for part in item)
    return Run(Occasion(COUNTED, "", "", "", "", "", "", "", details), [])


def occasion_of(
    name: EventName,
    task: ClaimedTask | TaskRef,
    status: Status,
    *,
    attempt: int | str = "",
    worker: uuid.UUID | None = None,
) -> Occasion:
    """Return the common fields of events about this task and similar ones."""
    return Occasion(
        name.value,
        task.task_type,
        task.queue,
        BAND_NAMES[task.priority],
        task.user,
        str(attempt),
        "" if worker is None else str(worker),
        status.value,
    )


@lru_cache(maxsize=1024)
def accepted(task_type: str, queue: str, priority: int, user: str, status: Status) -> Occasion:
    """Return the common fields of the events about new tasks of one type."""
    return Occasion(EventName.ACCEPTED.value, task_type, queue, BAND_NAMES[priority], user, "0", "", status.value)


def traced(occasion: Occasion, traceparent: str | None) -> Occasion:
    """Add the trace id of the caller; without one, the task's trace id is its own id."""
    if traceparent is None:
        return occasion
    return occasion._replace(details=(*occasion.details, TRACE_ID, trace.trace_id(traceparent)))


def traced_each(occasion: Occasion, ids: Sequence[str], traces: Sequence[str | None]) -> Occasion:
    """Add the trace ids of tasks in their order: one if all share it, none if no caller has sent one."""
    if not any(traces):
        return occasion
    named = [
        trace.trace_id(each) if each else task_id.replace("-", "") for task_id, each in zip(ids, traces, strict=True)
    ]
    text = named[0] if len(set(named)) == 1 else " ".join(named)
    return occasion._replace(details=(*occasion.details, TRACE_ID, text))


def in_runs(events: Iterable[tuple[Occasion, uuid.UUID]]) -> list[Run]:
    """Group adjacent events with equal fields; keep the order."""
    runs: list[Run] = []
    last: Occasion | None = None
    for occasion, task_id in events:
        if occasion is not last and occasion != last:
            runs.append(Run(occasion, []))
            last = occasion
        runs[-1].task_ids.append(task_id)
    return runs


def attempts_in_runs(events: Iterable[tuple[EventName, ClaimedTask, Status]]) -> list[Run]:
    """Group adjacent events about attempts with equal fields, without building the fields of each event."""
    runs: list[Run] = []
    last: object = None
    for name, task, status in events:
        kind = (name, task.task_type, task.queue, task.priority, task.user, task.attempt, status, task.worker_id)
        if kind != last:
            last = kind
            traces: list[str | None] = []
            occasion = occasion_of(name, task, status, attempt=task.attempt, worker=task.worker_id)
            runs.append(Run(occasion, [], traces))
        runs[-1].task_ids.append(task.id)
        traces.append(task.trace)
    return runs


#: A further field of events about tasks whose caller sent a trace.
TRACE_ID: Final = "trace_id"
#: Fields of every entry, in this order. A field that does not apply is empty.
FIELDS: Final = ("event", "task_id", "task_type", "queue", "priority", "user", "attempt", "worker", "status", "at")

_NUMBER: Final = re.compile(r"[0-9]{1,18}", re.ASCII)
_ENTRY_ID: Final = re.compile(r"[0-9]{1,19}(-[0-9]{1,19})?", re.ASCII)


def is_entry_id(text: str) -> bool:
    """Whether the text can be the id of a stream entry."""
    return _ENTRY_ID.fullmatch(text) is not None


@dataclass(frozen=True, slots=True)
class Event:
    """One event about one task; ``id`` names the stream entry, which may cover several tasks; ``at`` is in ms."""

    id: str
    name: str
    task_id: str
    task_type: str
    queue: str
    priority: str
    user: str
    attempt: int | None
    worker: str
    status: str
    at: int
    trace_id: str
    details: dict[str, str]

    @classmethod
    def from_fields(cls, entry_id: str, fields: dict[str, str]) -> list[Self]:
        """Return the events of a stream entry, one for each task id; missing fields are empty."""
        name, task_ids, task_type, queue, priority, user, attempt, worker, status, at = (
            fields.get(field, "") for field in FIELDS
        )
        details = {name: value for name, value in fields.items() if name not in FIELDS}
        count, ms, sent = _number(attempt), _number(at) or 0, details.pop(TRACE_ID, "")
        rest = (task_type, queue, priority, user, count, worker, status, ms)
        ids, traces = task_ids.split(" "), sent.split(" ")
        if len(traces) != len(ids):
            traces = [sent if len(traces) == 1 else ""] * len(ids)
        return [
            cls(entry_id, name, task_id, *rest, trace_id or task_id.replace("-", ""), details)
            for task_id, trace_id in zip(ids, traces, strict=True)
        ]


def _number(text: str) -> int | None:
    return int(text) if _NUMBER.fullmatch(text) else None


@dataclass(frozen=True, slots=True, kw_only=True)
class EventFilter:
    """Events that a reader wants; ``None`` matches any value."""

    queue: str | None = None
    task_type: str | None = None
    user: str | None = None
    task_id: uuid.UUID | None = None
    names: Sequence[str] | None = None

    def matches(self, event: Event) -> bool:
        return (
            self.queue in (None, event.queue)
            and self.task_type in (None, event.task_type)
            and self.user in (None, event.user)
            and (self.task_id is None or str(self.task_id) == event.task_id)
            and (self.names is None or event.name in self.names)
        )
