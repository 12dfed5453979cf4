"""Every error the queue raises, in one small tree.

The API maps this tree once to HTTP (``queue_app.api.errors``); the index maps its
script replies once to it (``queue_app.index.index``). One module, though a long one: rows, logs and
imports of users name these classes by it.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta
from difflib import get_close_matches


def near_matches(name: str, known: Iterable[str]) -> list[str]:
    """Return at most three known names that resemble ``name``, best first."""
    return get_close_matches(name, list(known), n=3, cutoff=0.5)


def _suggest(name: str, known: Iterable[str]) -> str:
    matches = near_matches(name, known)
    return f" Did you mean {' or '.join(repr(match) for match in matches)}?" if matches else ""


class TaskQueueError(Exception):
    """Base of all errors of the queue; ``code`` is stable and safe to match on."""

    code = "task_queue_error"


class InvalidTaskData(TaskQueueError, ValueError):
    """Refuse a task before anything is stored; ``field`` names the part at fault."""

    code = "invalid"

    def __init__(self, field: str, message: str, *, code: str | None = None, limit: int | None = None) -> None:
        super().__init__(message)
        self.field = field
        self.message = message
        self.limit = limit
        self.code = code or type(self).code


class UnserializableParameters(InvalidTaskData, TypeError):
    """Refuse parameters that are not plain JSON values."""

    code = "not_json"


class PayloadTooLarge(InvalidTaskData):
    """Refuse parameters that are larger than the configured limit."""

    code = "payload_too_large"


class UnknownTaskType(InvalidTaskData):
    """Refuse a task type that no registered function carries."""

    code = "unknown_task_type"

    def __init__(self, task_type: str, known: Iterable[str]) -> None:
        known = sorted(known)
        super().__init__("task_type", f"No task is registered as {task_type!r}.{_suggest(task_type, known)}")
        self.near_matches = near_matches(task_type, known)


class UnknownQueue(InvalidTaskData):
    """Refuse a queue that neither code nor staff have named."""

    code = "unknown_queue"

    def __init__(self, queue: str, known: Iterable[str]) -> None:
        known = sorted(known)
        super().__init__("queue", f"There is no queue {queue!r}.{_suggest(queue, known)}")
        self.near_matches = near_matches(queue, known)


class LimitExceeded(TaskQueueError):
    """Refuse tasks for which there is no room; ``limit`` and ``current`` are the numbers, ``asked`` how many came.

    ``current`` is counted up to the limit: where a limit was lowered, or code without one
    enqueued, there may be more. ``retry_after`` (s) is when trying again may make sense.
    """

    code = "limit_exceeded"
    retry_after = 10

    def __init__(self, message: str, *, queue: str, limit: int, current: int, asked: int = 1) -> None:
        super().__init__(message)
        self.queue = queue
        self.limit = limit
        self.current = current
        self.asked = asked


class QueueFull(LimitExceeded):
    """As many tasks wait in the queue as may: its ``max_length``."""

    code = "queue_full"

    def __init__(self, queue: str, *, limit: int, current: int, asked: int = 1) -> None:
        room = "no more fit" if asked == 1 else f"{asked} more do not fit"
        super().__init__(
            f"The queue {queue!r} is full: {current} tasks wait of at most {limit}, and {room}. Try again later, or"
            " ask staff for a larger max_length.",
            queue=queue,
            limit=limit,
            current=current,
            asked=asked,
        )


class UserLimitExceeded(LimitExceeded):
    """The user has as many pending tasks as one user may: ``max_pending_per_user``.

    ``queue`` is empty where the limit is that over all queues.
    """

    code = "user_limit_exceeded"

    def __init__(self, user: str, *, queue: str, limit: int, current: int, asked: int = 1) -> None:
        where = f" in the queue {queue!r}" if queue else ""
        room = "no more are accepted" if asked == 1 else f"{asked} more are too many"
        super().__init__(
            f"The user {user!r} has {current} pending tasks{where} of at most {limit}, and {room}. Wait until some"
            " have ended, or ask staff for a larger max_pending_per_user.",
            queue=queue,
            limit=limit,
            current=current,
            asked=asked,
        )
        self.user = user


class LimitNotFound(TaskQueueError, LookupError):
    """No limit has this id, or it was deleted."""

    code = "limit_not_found"


class IsolationTooStrict(TaskQueueError):
    """A limit on what may be enqueued cannot be checked: the transaction sees an old snapshot of the rows."""

    code = "isolation_too_strict"


class IdempotencyConflict(TaskQueueError):
    """The idempotency key was used before with another task or other parameters."""

    code = "idempotency_conflict"


class TaskNotFound(TaskQueueError, LookupError):
    """No task has this id, or it was purged."""

    code = "task_not_found"


class DeadLetterNotFound(TaskQueueError, LookupError):
    """No dead letter has this id, or its time was over."""

    code = "dead_letter_not_found"


class OperationNotFound(TaskQueueError, LookupError):
    """No operation has this id, or it was purged."""

    code = "operation_not_found"


class OperationEnded(TaskQueueError):
    """The operation has ended; there is nothing left to cancel."""

    code = "operation_ended"


class ChangedMeanwhile(TaskQueueError):
    """What shall be edited is not what the edit is based on any more."""

    code = "changed_meanwhile"


class InvalidTransition(TaskQueueError):
    """The task is in a state that does not allow what was asked; ``status`` says which."""

    code = "invalid_transition"

    def __init__(self, message: str, *, status: str) -> None:
        super().__init__(message)
        self.status = status


class IndexUnavailable(TaskQueueError):
    """Redis cannot be reached or refuses to work; the rows are not affected."""

    code = "index_unavailable"


class IndexNotReady(TaskQueueError):
    """The index has no valid generation: it must be rebuilt from the rows before it may propose work."""

    code = "index_not_ready"


class UnknownProfile(TaskQueueError):
    """The index does not know the worker's profile (it was rebuilt); register again."""

    code = "unknown_profile"


class TokenRefused(TaskQueueError):
    """The worker token is missing, unknown, expired or revoked; which of these is not told."""

    code = "invalid_token"
    auth_header = "Bearer"


class OutOfScope(TaskQueueError):
    """The worker token does not reach so far; ``code`` says in what."""

    def __init__(self, message: str, *, code: str) -> None:
        super().__init__(message)
        self.code = code


class WorkerNotFound(TaskQueueError, LookupError):
    """No worker of this token has this id."""

    code = "worker_not_found"


class WorkerLost(TaskQueueError):
    """The worker was declared dead, or has left; it must register again."""

    code = "worker_lost"


class StaleLease(TaskQueueError):
    """The attempt does not hold its task any more; ``status`` says where the task stands now."""

    code = "stale_lease"

    def __init__(self, message: str, *, status: str | None) -> None:
        super().__init__(message)
        self.status = status


class TaskControl(Exception):
    """Base of what task code raises to say how its attempt shall end."""


class Retry(TaskControl):
    """Try again ``after`` so many seconds; it counts against ``max_retries`` like any failure.

    Without ``after`` the usual backoff applies.
    """

    def __init__(self, message: str = "", *, after: float | timedelta | None = None) -> None:
        super().__init__(message)
        self.after = None if after is None else _seconds("after", after)


class Discard(TaskControl):
    """End the task as failed, whatever retries are left: trying again would be no use."""


class Snooze(TaskControl):
    """Put the task back for ``seconds``; no attempt is spent."""

    def __init__(self, seconds: float | timedelta, message: str = "") -> None:
        super().__init__(message or "snoozed")
        self.seconds = _seconds("seconds", seconds)


class Throttle(TaskControl):
    """Put the task back to its place, and let nothing of its queue, type or key start for ``seconds``.

    For task code that was told to slow down (HTTP 429). No attempt is spent; it goes on by
    itself. ``scope`` is "queue", "type" or "key"; the last is for tasks with a
    ``concurrency_key``: where there is none, the attempt fails.
    """

    def __init__(self, seconds: float | timedelta, scope: str = "type", message: str = "") -> None:
        if scope not in THROTTLE_SCOPES:
            raise ValueError(f"scope must be one of {', '.join(THROTTLE_SCOPES)}, not {scope!r}.")
        self.seconds = _seconds("seconds", seconds)
        if self.seconds > MAX_THROTTLE_SECONDS:
            raise ValueError(f"seconds must be at most {MAX_THROTTLE_SECONDS:.0f}, not {seconds!r}.")
        self.scope = scope
        super().__init__(message or f"throttled for {self.seconds:g} s by {scope}")


THROTTLE_SCOPES = ("queue", "type", "key")
MAX_THROTTLE_SECONDS = 31 * 86_400.0
#: Control flow may defer a task by at most ten years, as ``run_after`` may.
MAX_DEFER_SECONDS = 3660 * 86_400.0


def _seconds(name: str, value: float | timedelta) -> float:
    seconds = value.total_seconds() if isinstance(value, timedelta) else float(value)
    if not 0 <= seconds <= MAX_DEFER_SECONDS:  # false for NaN too
        raise ValueError(f"{name} must lie between 0 and {MAX_DEFER_SECONDS:.0f} seconds, not {value!r}.")
    return seconds


class Interruption(BaseException):
    """Base of what a worker raises in a task's thread to end it.

    Not an ``Exception``, so that a task that catches those does not swallow it; ``finally``
    blocks and context managers still clean up.
    """


class TaskTimeout(Interruption):
    """The attempt took longer than its timeout."""


class TaskCancelled(Interruption):
    """The task was cancelled while it ran."""


class WorkerDied(TaskControl):
    """The worker died while it had the task; recorded as the error of that attempt."""
