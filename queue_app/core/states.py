"""The states of a task and the transitions between them."""

from __future__ import annotations

from enum import StrEnum
from typing import Final


class Status(StrEnum):
    """Where a task stands; the values are stored in the row and shown by every interface."""

    SCHEDULED = "scheduled"
    QUEUED = "queued"
    EXECUTING = "executing"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"
    DEAD_LETTER = "dead_letter"
    EXPIRED = "expired"


#: The composite that every filter accepts beside the states.
PENDING_NAME: Final = "pending"
WAITING: Final = frozenset({Status.SCHEDULED, Status.QUEUED})
PENDING: Final = WAITING | {Status.EXECUTING}
TERMINAL: Final = frozenset(Status) - PENDING

#: state -> states that may follow it. A test trigger in PostgreSQL enforces the same table.
TRANSITIONS: Final[dict[Status, frozenset[Status]]] = {
    Status.SCHEDULED: frozenset({Status.QUEUED, Status.CANCELLED}),
    Status.QUEUED: frozenset({Status.EXECUTING, Status.CANCELLED, Status.EXPIRED, Status.SCHEDULED}),
    Status.EXECUTING: frozenset(
        {
            Status.COMPLETED,
            Status.FAILED,
            Status.CANCELLED,
            Status.DEAD_LETTER,
            Status.SCHEDULED,  # a retry
            Status.QUEUED,  # given back, or its worker died
        }
    ),
    Status.DEAD_LETTER: frozenset({Status.QUEUED}),  # a replay
    Status.COMPLETED: frozenset(),
    Status.FAILED: frozenset({Status.QUEUED}),  # staff let it try again
    Status.CANCELLED: frozenset({Status.QUEUED}),  # the same
    Status.EXPIRED: frozenset({Status.QUEUED}),  # the same
}
