"""All errors of the queue, in one tree.

``queue_app.api.errors`` maps the tree to HTTP, and ``queue_app.index.index`` maps replies of
scripts to it. It is one long module because rows, logs and users' imports contain its path.
"""

from collections.abc import Iterable
from datetime import timedelta
from difflib import get_close_matches
from typing import Any
from uuid import UUID

#: Shorter names differ by a letter on purpose.
MIN_TYPO = 3


def near_matches(name: str, known: Iterable[str]) -> list[str]:
    """Return at most three similar known names, best first; of dotted names, those whose last parts are similar too."""
    last = name.rpartition(".")[2]
    similar = get_close_matches(name, list(known), n=20, cutoff=0.5)
    return [match for match in similar if get_close_matches(last, [match.rpartition(".")[2]], cutoff=0.5)][:3]


def suggestion(name: str, known: Iterable[str]) -> str:
    """Return a question that names similar known names, after a space; empty without one."""
    matches = near_matches(name, known)
    return f" Did you mean {' or '.join(repr(match) for match in matches)}?" if matches else ""


def in_one_line(error: BaseException | None) -> str:
    """Return the text of an error in one line."""
    return " ".join(str(error).split())


def is_typo(one: str, other: str) -> bool:
    """Return whether two names differ by case, one letter, or two neighbours that are swapped; digits may differ."""
    a, b = sorted((one.casefold(), other.casefold()), key=len)
    same = next((at for at, pair in enumerate(zip(a, b, strict=False)) if len(set(pair)) > 1), len(a))
    a, b = a[same:], b[same:]
    if same + len(a) < MIN_TYPO or (a[:1] + b[:1]).isdigit():
        return False
    is_swapped = len(a) > 1 and a[:2] == b[1::-1] and a[2:] == b[2:]
    return b[1:] in (a, a[1:]) or is_swapped


class TaskQueueError(Exception):
    """Base of all errors of the queue; ``code`` is stable."""

    code = "task_queue_error"

    def __init_subclass__(cls, *, code: str = "", **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        cls.code = code or cls.code


class InvalidTaskData(TaskQueueError, ValueError, code="invalid"):
    """The task is invalid and was not stored; ``field``, ``message``, ``code`` and sometimes ``limit`` say why."""

    def __init__(self, field: str, message: str, *, code: str | None = None, limit: int | None = None) -> None:
        super().__init__(message)
        self.field = field
        self.message = message
        self.limit = limit
        self.code = code or type(self).code


class UnserializableParameters(InvalidTaskData, TypeError, code="not_json"):
    """The parameters are not plain JSON values."""


class PayloadTooLarge(InvalidTaskData, code="payload_too_large"):
    """The parameters are larger than the configured limit."""


class WrongArguments(InvalidTaskData, TypeError, code="wrong_arguments"):
    """The function of the task cannot be called with these arguments; ``signature`` shows what it takes."""

    def __init__(self, task_type: str, signature: str, reason: str) -> None:
        super().__init__("parameters", f"{task_type}{signature} cannot be called with these arguments: {reason}.")
        self.task_type = task_type
        self.signature = signature


class UnknownTaskType(InvalidTaskData, code="unknown_task_type"):
    """No function is registered for the task type; ``near_matches`` lists similar names."""

    def __init__(self, task_type: str, known: Iterable[str]) -> None:
        known = sorted(known)
        super().__init__("task_type", f"No task is registered as {task_type!r}.{suggestion(task_type, known)}")
        self.near_matches = near_matches(task_type, known)


class UnknownQueue(InvalidTaskData, code="unknown_queue"):
    """The queue does not exist; ``near_matches`` lists similar names."""

    def __init__(self, queue: str, known: Iterable[str], why: str = "") -> None:
        known = sorted(known)
        text = f"There is no queue {queue!r}. {why}".strip()
        super().__init__("queue", f"{text}{suggestion(queue, known)}")
        self.near_matches = near_matches(queue, known)


class LimitExceeded(TaskQueueError, code="limit_exceeded"):
    """There is no room for ``asked`` more tasks in ``queue``, which holds ``current`` of at most ``limit``.

    ``current`` is counted only up to the limit. There may be more tasks if the limit was lowered
    or code enqueued without a limit. ``retry_after`` is in seconds.
    """

    retry_after = 10

    def __init__(self, message: str, *, queue: str, limit: int, current: int, asked: int = 1) -> None:
        super().__init__(message)
        self.queue = queue
        self.limit = limit
        self.current = current
        self.asked = asked


class QueueFull(LimitExceeded, code="queue_full"):
    """The queue has ``max_length`` waiting tasks."""

    def __init__(self, queue: str, *, limit: int, current: int, asked: int = 1) -> None:
        room = "no more fit" if asked == 1 else f"{asked} more do not fit"
        text = (
            f"The queue {queue!r} is full: it has {current} of at most {limit} waiting tasks, and {room}. Try again"
            " later, or ask staff for a larger max_length."
        )
        super().__init__(text, queue=queue, limit=limit, current=current, asked=asked)


class UserLimitExceeded(LimitExceeded, code="user_limit_exceeded"):
    """The user has ``max_pending_per_user`` pending tasks; ``queue`` is empty for the limit over all queues."""

    def __init__(self, user: str, *, queue: str, limit: int, current: int, asked: int = 1) -> None:
        where = f" in the queue {queue!r}" if queue else ""
        room = "no more are accepted" if asked == 1 else f"{asked} more are too many"
        text = (
            f"The user {user!r} has {current} of at most {limit} pending tasks{where}, and {room}. Wait until some"
            " have ended, or ask staff for a larger max_pending_per_user."
        )
        super().__init__(text, queue=queue, limit=limit, current=current, asked=asked)
        self.user = user


class LimitNotFound(TaskQueueError, LookupError, code="limit_not_found"):
    """No limit has this id, or it was deleted."""


class ScheduleNotFound(TaskQueueError, LookupError, code="schedule_not_found"):
    """No schedule has this name or id, or it was deleted."""


class IsolationTooStrict(TaskQueueError, code="isolation_too_strict"):
    """A limit or a unique rule cannot be checked, because the transaction sees an old snapshot."""


class IdempotencyConflict(TaskQueueError, code="idempotency_conflict"):
    """The idempotency key was used before with another task or other parameters."""


class UniqueConflict(TaskQueueError, code="unique_conflict"):
    """An equal task already exists; ``task_id`` and ``status`` name it if the caller may see it."""

    def __init__(self, message: str, *, task_id: UUID | None = None, status: str | None = None) -> None:
        super().__init__(message)
        self.task_id = task_id
        self.status = status


class CodecMissing(TaskQueueError, code="codec_missing"):
    """An argument needs a codec that this process does not know; another worker may."""


class EncryptionUnavailable(TaskQueueError, code="encryption_unavailable"):
    """A task is encrypted, and the project lacks a usable key or the package ``cryptography``."""


class Undecryptable(TaskQueueError, code="undecryptable"):
    """A stored value cannot be decrypted: its key is missing here, or the value was changed."""

    def __init__(self, message: str, *, is_key_missing: bool = False) -> None:
        super().__init__(message)
        self.is_key_missing = is_key_missing


class TaskNotFound(TaskQueueError, LookupError, code="task_not_found"):
    """No task has this id, or it was purged."""


class TaskFailed(TaskQueueError, code="task_failed"):
    """A task that the caller waits for ended without success; ``errors`` has (class, traceback) of each attempt."""

    def __init__(self, task_id: str, errors: list[tuple[str, str]]) -> None:
        kind, traceback = errors[-1] if errors else ("it was cancelled or has expired", "")
        last = traceback.strip().rpartition("\n")[2] or kind
        super().__init__(f"The task {task_id} ended without success: {last[:500]}")
        self.task_id = task_id
        self.errors = errors


class DeadLetterNotFound(TaskQueueError, LookupError, code="dead_letter_not_found"):
    """No dead letter has this id, or it was purged."""


class OperationNotFound(TaskQueueError, LookupError, code="operation_not_found"):
    """No operation has this id, or it was purged."""


class OperationEnded(TaskQueueError, code="operation_ended"):
    """The operation has ended; there is nothing left to cancel."""


class SimulationRefused(TaskQueueError, code="simulation_refused"):
    """A simulation cannot run here, or has nothing to simulate."""


class ChangedMeanwhile(TaskQueueError, code="changed_meanwhile"):
    """The object was changed after the caller read it."""


class InvalidTransition(TaskQueueError, code="invalid_transition"):
    """The task's state, ``status``, does not allow the change."""

    def __init__(self, message: str, *, status: str) -> None:
        super().__init__(message)
        self.status = status


class IndexUnavailable(TaskQueueError, code="index_unavailable"):
    """Redis cannot be reached or refuses to work; the rows are not affected."""


class IndexDamaged(IndexUnavailable):
    """Redis answers, but a script could not work with what the index holds; a new generation replaces it."""


class IndexOfAnotherDatabase(IndexUnavailable):
    """The index belongs to the tasks of another database: of another project, or of the original of a copy."""


class IndexNotReady(TaskQueueError, code="index_not_ready"):
    """The index has no valid generation and must be rebuilt from the rows before it proposes tasks."""


class UnknownProfile(TaskQueueError, code="unknown_profile"):
    """The index does not know the worker's profile, because it was rebuilt; register again."""


class TokenRefused(TaskQueueError, code="invalid_token"):
    """The worker token is missing, unknown, expired or revoked; the error does not say which."""

    auth_header = "Bearer"


class OutOfScope(TaskQueueError):
    """The worker token does not allow the request; ``code`` says why."""

    def __init__(self, message: str, *, code: str) -> None:
        super().__init__(message)
        self.code = code


class WorkerNotFound(TaskQueueError, LookupError, code="worker_not_found"):
    """No worker of this token has this id."""


class WorkerLost(TaskQueueError, code="worker_lost"):
    """The worker was declared dead or has left; it must register again."""


class WorkerNameTaken(TaskQueueError, code="worker_name_taken"):
    """A living worker of another token, or of this project's own machines, has this name."""


class StaleLease(TaskQueueError, code="stale_lease"):
    """The attempt no longer holds its task; ``status`` is the task's present state."""

    def __init__(self, message: str, *, status: str | None) -> None:
        super().__init__(message)
        self.status = status


class StepsChanged(TaskQueueError, code="steps_changed"):
    """The task's code calls other steps than an earlier attempt stored."""


class StepRefused(TaskQueueError, code="step_refused"):
    """A step was called where it cannot be stored."""


class TransactionLeftOpen(TaskQueueError, code="transaction_left_open"):
    """A task returned with an open transaction, so what it wrote was rolled back; the attempt fails."""


class TaskControl(Exception):
    """Base of exceptions with which task code decides how its attempt ends."""


class Retry(TaskControl):
    """Fail the attempt and retry ``after`` seconds (default: the usual backoff); this uses up a retry."""

    def __init__(self, message: str = "", *, after: float | timedelta | None = None) -> None:
        super().__init__(message)
        self.after = None if after is None else _seconds("after", after)


class Discard(TaskControl):
    """End the task as failed, without further retries."""


class ArgumentGone(TaskQueueError, Discard, code="argument_gone"):
    """A model instance in the arguments was deleted before the task started; the task is not retried."""


class ArgumentUnreadable(TaskQueueError, Discard, code="argument_unreadable"):
    """A codec does not understand the form of an argument; the task is not retried."""


class ArgumentUndecryptable(ArgumentUnreadable, code="argument_undecryptable"):
    """No key here decrypts the arguments; the task is not retried. The message holds no value."""


class Veto(TaskQueueError, Discard, code="vetoed"):
    """A hook refused to enqueue a task, or ended it as failed instead of running it."""


class Snooze(TaskControl):
    """Run the task again in ``seconds``, without using up a retry."""

    def __init__(self, seconds: float | timedelta, message: str = "") -> None:
        super().__init__(message or "snoozed")
        self.seconds = _seconds("seconds", seconds)


class Throttle(TaskControl):
    """Requeue the task in its place, and start no task of its queue, type or key for ``seconds``.

    For task code that another service asked to slow down (HTTP 429). No retry is used up.
    ``scope`` is "queue", "type" or "key"; "key" fails the attempt of a task that has no
    ``concurrency_key``.
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
#: Longest delay that task code may ask for: ten years, as for ``run_after``.
MAX_DEFER_SECONDS = 3660 * 86_400.0


def _seconds(name: str, value: float | timedelta) -> float:
    seconds = value.total_seconds() if isinstance(value, timedelta) else float(value)
    if not 0 <= seconds <= MAX_DEFER_SECONDS:  # false for NaN too
        raise ValueError(f"{name} must lie between 0 and {MAX_DEFER_SECONDS:.0f} seconds, not {value!r}.")
    return seconds


class Interruption(BaseException):
    """Base of exceptions that a worker raises in a task's thread to end the attempt.

    It is not an ``Exception``, so ``except Exception`` in a task does not catch it.
    """


class TaskTimeout(Interruption):
    """The attempt took longer than its timeout."""


class TaskCancelled(Interruption):
    """The task was cancelled while it ran."""


class AttemptLost(Interruption):
    """The attempt lost its task, so its step was not stored; another attempt runs the task."""


class Suspended(BaseException):
    """The attempt ends, and the task continues later: ``seconds`` from now, or when its signal arrives (``None``).

    It is not an ``Exception``, so ``except Exception`` in a task does not catch it.
    """

    def __init__(self, seconds: float | None) -> None:
        super().__init__("suspended")
        self.seconds = seconds


class SignalTimeout(Exception):
    """The signal that the task waited for did not arrive in time."""


class WorkerDied(TaskControl):
    """The worker died during the attempt; the error that such an attempt records."""


class ResultMissing(TaskQueueError, LookupError, code="result_missing"):
    """An argument refers to a part of another task's result that this result does not have."""


class InputTooLarge(TaskQueueError, code="input_too_large"):
    """The results that flow into a task of a workflow take too many bytes."""


class InvalidWorkflow(InvalidTaskData, code="invalid_workflow"):
    """The workflow is invalid and nothing was stored."""


class AttemptOver(TaskQueueError, code="attempt_over"):
    """The attempt has ended or lost its task, so it can no longer change anything."""


class WorkflowNotFound(TaskQueueError, LookupError, code="workflow_not_found"):
    """There is no such workflow, or the caller may not see it."""
