"""The states of a task and the transitions between them."""

from enum import StrEnum
from typing import Final

from queue_app.core.sentence import sentence


class Status(StrEnum):
    """The state of a task; the values are stored in rows and shown in all interfaces."""

    BLOCKED = "blocked"
    SCHEDULED = "scheduled"
    QUEUED = "queued"
    EXECUTING = "executing"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"
    DEAD_LETTER = "dead_letter"
    EXPIRED = "expired"


#: Name for all pending states, which filters accept beside the states.
PENDING_NAME: Final = "pending"
#: Names of states in other queues, which filters accept too.
OTHER_NAMES: Final = {"succeeded": Status.COMPLETED, "running": Status.EXECUTING}
WAITING: Final = frozenset({Status.BLOCKED, Status.SCHEDULED, Status.QUEUED})
PENDING: Final = WAITING | {Status.EXECUTING}
TERMINAL: Final = frozenset(Status) - PENDING
#: Ends without success that no person asked for.
FAILURES: Final = frozenset({Status.FAILED, Status.DEAD_LETTER, Status.EXPIRED})

_PREDICATES: Final = {
    Status.BLOCKED: sentence("is blocked"),
    Status.SCHEDULED: sentence("is scheduled"),
    Status.QUEUED: sentence("is queued"),
    Status.EXECUTING: sentence("is executing"),
    Status.COMPLETED: sentence("is completed"),
    Status.FAILED: sentence("has failed"),
    Status.CANCELLED: sentence("is cancelled"),
    Status.DEAD_LETTER: sentence("is a dead letter"),
    Status.EXPIRED: sentence("has expired"),
}


def predicate(status: str) -> str:
    """Return what a sentence says about a task in this state, such as "is queued"."""
    return _PREDICATES[Status(status)]


#: State -> states that may follow it. Tests enforce this table by a trigger in PostgreSQL.
TRANSITIONS: Final[dict[Status, frozenset[Status]]] = {
    Status.BLOCKED: frozenset({Status.QUEUED, Status.SCHEDULED, Status.CANCELLED}),
    Status.SCHEDULED: frozenset({Status.QUEUED, Status.CANCELLED, Status.BLOCKED}),
    Status.QUEUED: frozenset(
        {
            Status.EXECUTING,
            Status.CANCELLED,
            Status.EXPIRED,
            Status.SCHEDULED,
            Status.BLOCKED,  # its workflow was paused, or a retry found that it must wait
        }
    ),
    Status.EXECUTING: frozenset(
        {
            Status.COMPLETED,
            Status.FAILED,
            Status.CANCELLED,
            Status.DEAD_LETTER,
            Status.SCHEDULED,  # a retry
            Status.QUEUED,  # given back, or its worker died
            Status.BLOCKED,  # its function waits for a signal
        }
    ),
    Status.DEAD_LETTER: frozenset({Status.QUEUED}),  # a replay
    Status.COMPLETED: frozenset(),
    Status.FAILED: frozenset({Status.QUEUED}),  # a retry by staff
    Status.CANCELLED: frozenset({Status.QUEUED}),  # a retry by staff
    Status.EXPIRED: frozenset({Status.QUEUED}),  # a retry by staff
}
