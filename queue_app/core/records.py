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


class Entry(NamedTuple):
    """A queued task's place in the index."""

    lane: str
    score: float
    id: uuid.UUID


@dataclass(frozen=True, slots=True)
class TaskRef:
    """A stored task as the index needs it: its identity, its lane and its score."""

    id: uuid.UUID
    task_type: str
    queue: str
    priority: int
    capabilities: tuple[str, ...]
    queued_at: datetime
    user: str = field(default="", compare=False)  # for events; not every source names it

    @classmethod
    def from_row(cls, row: Sequence[Any]) -> Self:
        """Return the record of a database row with these columns, in this order; the user may be left out."""
        task_id, task_type, queue, priority, capabilities, queued_at, *user = row
        return cls(task_id, task_type, queue, priority, tuple(capabilities), queued_at, *user)

    @property
    def lane(self) -> str:
        """The name of the lane that the task waits in."""
        return lane_name(self.queue, self.task_type, self.capabilities)

    @property
    def score(self) -> float:
        """Its place in the lane."""
        return score(self.priority, self.queued_at)

    @property
    def entry(self) -> Entry:
        """Lane, score and id together."""
        return Entry(self.lane, self.score, self.id)


@dataclass(frozen=True, slots=True)
class Enqueued:
    """The answer to an enqueue; ``created`` is false for a replayed idempotency key."""

    id: uuid.UUID
    status: Status
    enqueued_at: datetime
    created: bool = True


@dataclass(frozen=True, slots=True)
class Proposal:
    """Ids that the index proposes to one worker; each holds a lease taken at ``leased_at`` (index time, µs)."""

    generation: int
    leased_at: int
    tasks: tuple[tuple[uuid.UUID, str], ...]  # (id, queue)


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
    worker_id: uuid.UUID | None = None  # who was granted it: the other half of the fence
    leased_at: int = ANY_LEASE  # the instant of its lease (index time, µs)

    @classmethod
    def from_row(cls, row: Sequence[Any], leased_at: int = ANY_LEASE) -> Self:
        """Return the record of a database row with these columns, in this order."""
        values = [*row, leased_at]
        values[5] = tuple(values[5])
        return cls(*values)

    @property
    def ref(self) -> TaskRef:
        """The task as the index knows it."""
        return TaskRef(self.id, self.task_type, self.queue, self.priority, self.capabilities, self.queued_at, self.user)


@dataclass(frozen=True, slots=True)
class TaskFailure:
    """What an attempt raised."""

    exception_class: str
    message: str
    traceback: str
    retriable: bool = True
    retry_after: float | None = None  # seconds; None: by the backoff
    reason: str = "error"  # error, timeout, cancelled


@dataclass(frozen=True, slots=True)
class Outcome:
    """How one attempt ended: with ``result`` (JSON text, ``None`` for null), with ``failure``, or put off.

    ``snooze`` puts the task back for so many seconds, no attempt spent.
    """

    task: ClaimedTask
    started_at: datetime
    finished_at: datetime
    result: str | None = None
    failure: TaskFailure | None = None
    snooze: float | None = None
