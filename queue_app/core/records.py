"""The frozen records that services, rows, the index and workers exchange."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final, NamedTuple, Self

from queue_app.core.lanes import lane_name, score
from queue_app.core.priorities import Band
from queue_app.core.states import Status

#: Stands for the instant of a lease where that is not known: whichever lease it is.
ANY_LEASE: Final = -1
#: Where the lease stands in a ``ClaimedTask``: behind what its row holds.
_LEASED_AT: Final = 19


@dataclass(frozen=True, slots=True, kw_only=True)
class NewTask:
    """What a caller asks for; nothing of it is checked yet."""

    task_type: str
    args: tuple[Any, ...] | list[Any] = ()
    parameters: dict[str, Any] = field(default_factory=dict)
    queue: str = "default"
    priority: Band = Band.NORMAL
    capabilities: tuple[str, ...] = ()
    run_after: datetime | None = None
    user: str = ""
    timeout: float | None = None
    max_retries: int | None = None
    retry_delay: float | None = None
    idempotency_key: str | None = None
    concurrency_key: str = ""
    weight: int = 1


class Entry(NamedTuple):
    """A queued task's place in the index."""

    lane: str
    score: float
    id: uuid.UUID


class PackedLane(NamedTuple):
    """Queued tasks of one lane: their ids, 16 bytes each, and in the same order their scores as big-endian doubles."""

    lane: str
    ids: bytes
    scores: bytes

    @property
    def size(self) -> int:
        """How many tasks there are."""
        return len(self.scores) // 8

    def part(self, start: int, end: int) -> PackedLane:
        """Return those from ``start`` to before ``end``."""
        return PackedLane(self.lane, self.ids[16 * start : 16 * end], self.scores[8 * start : 8 * end])


@dataclass(frozen=True, slots=True)
class TaskRef:
    """A stored task as the index needs it: its identity, its lane and its score."""

    id: uuid.UUID
    task_type: str
    queue: str
    priority: int
    capabilities: tuple[str, ...]
    queued_at: datetime
    user: str = field(default="", compare=False)
    concurrency_key: str = ""
    weight: int = 1

    @classmethod
    def from_row(cls, row: Sequence[Any]) -> Self:
        """Return the record of a database row with these columns, in this order."""
        task_id, task_type, queue, priority, capabilities, queued_at, *who = row
        return cls(task_id, task_type, queue, priority, tuple(capabilities), queued_at, *who)

    @property
    def lane(self) -> str:
        """The name of the lane that the task waits in."""
        return lane_name(self.queue, self.task_type, self.capabilities, self.user, self.concurrency_key, self.weight)

    @property
    def score(self) -> float:
        """Its place in the lane."""
        return score(self.priority, self.queued_at)

    @property
    def entry(self) -> Entry:
        """Lane, score and id together."""
        return Entry(self.lane, self.score, self.id)


class Enqueued(NamedTuple):
    """The answer to an enqueue; ``created`` is false for a replayed idempotency key.

    ``queue_position`` is only known where it was asked for, the task waits and the index told it.
    """

    id: uuid.UUID
    status: Status
    enqueued_at: datetime
    created: bool = True
    queue_position: int | None = None


@dataclass(frozen=True, slots=True)
class Proposal:
    """Ids that the index proposes to one worker; each holds a lease taken at ``leased_at`` (index time, µs)."""

    generation: int
    leased_at: int
    tasks: tuple[tuple[uuid.UUID, str], ...]  # (id, queue)
    wait: float | None = None  # seconds until a limit lets something start again, for who shall look then


@dataclass(frozen=True, slots=True)
class ClaimedTask:
    """A task whose row a worker holds under the fencing token ``attempt``.

    A claim's commit does not wait for the disk. When PostgreSQL crashes right after it, the
    same number is granted again, to somebody else: so the worker is part of the fence.
    """

    id: uuid.UUID
    attempt: int
    task_type: str
    queue: str
    priority: int
    capabilities: tuple[str, ...]
    user: str
    created_at: datetime
    queued_at: datetime
    started_at: datetime
    timeout: float
    max_retries: int
    retry_delay: float | None
    failures: int
    args: str  # JSON text, decoded by the slot that runs it
    parameters: str  # JSON text
    concurrency_key: str = ""
    weight: int = 1  # slots of a worker
    worker_id: uuid.UUID | None = None  # who was granted it: the other half of the fence
    leased_at: int = ANY_LEASE  # the instant of its lease (index time, µs)
    trace: str | None = None  # W3C traceparent

    @classmethod
    def from_row(cls, row: Sequence[Any], leased_at: int = ANY_LEASE) -> Self:
        """Return the record of a database row with these columns, in this order; the trace may be left out."""
        values = [*row[:_LEASED_AT], leased_at, *row[_LEASED_AT:]]
        values[5] = tuple(values[5])
        return cls(*values)

    @property
    def ref(self) -> TaskRef:
        """The task as the index knows it."""
        return TaskRef(
            self.id,
            self.task_type,
            self.queue,
            self.priority,
            self.capabilities,
            self.queued_at,
            self.user,
            self.concurrency_key,
            self.weight,
        )


@dataclass(frozen=True, slots=True)
class TaskFailure:
    """What an attempt raised."""

    exception_class: str
    message: str
    traceback: str
    retriable: bool = True
    retry_after: float | None = None  # seconds; None: by the backoff
    reason: str = "error"  # error, timeout, cancelled


class Throttling(NamedTuple):
    """Nothing of this scope (queue, type or key of the task) shall start for so many seconds."""

    scope: str
    seconds: float


@dataclass(frozen=True, slots=True)
class Outcome:
    """How one attempt ended: with ``result`` (JSON text, ``None`` for null), with ``failure``, or put off.

    ``snooze`` puts the task back for so many seconds, no attempt spent; ``throttle`` puts it
    back to its place and closes one of its gates for a while.
    """

    task: ClaimedTask
    started_at: datetime
    finished_at: datetime
    result: str | None = None
    failure: TaskFailure | None = None
    snooze: float | None = None
    throttle: Throttling | None = None
    #: What was raised, where it was raised in this process and the attempt is the last: for the log, never stored.
    error: BaseException | None = field(default=None, compare=False, repr=False)

    @property
    def is_completed(self) -> bool:
        """Whether the function returned."""
        return self.failure is None and self.snooze is None and self.throttle is None


@dataclass(frozen=True, slots=True)
class ProgressReport:
    """What one attempt said since its last note: how far it is, what it logged, how much longer it needs."""

    task_id: uuid.UUID
    attempt: int
    worker_id: uuid.UUID | None
    progress: float | None = None
    message: str = ""
    lines: str | None = None  # the last lines that it logged, all of them; None: nothing new
    dropped: int = 0  # earlier lines that were left out
    extend: float = 0.0  # seconds
