"""How an attempt ended, as a record that the rows can hold; and what code sees of it meanwhile."""

from __future__ import annotations

import json
import logging
import time
import uuid
from dataclasses import replace
from traceback import TracebackException
from typing import Any

from django.tasks.base import TaskError, TaskResult, TaskResultStatus

from queue_app import registry
from queue_app.core.records import ClaimedTask, Outcome, TaskFailure, Throttling
from queue_app.exceptions import Discard, Retry, Snooze, TaskCancelled, TaskTimeout, Throttle
from queue_app.registry import AnyTask
from queue_app.tasks import AnyResult, next_try
from queue_app.workers.context import ClaimedAttempt
from queue_app.workers.transport import earlier_attempts

_log = logging.getLogger("taskqueue")

MAX_MESSAGE = 2_000  # characters
MAX_TRACEBACK = 20_000  # characters; the end of it is kept
MAX_FRAMES = 60


def seen_result(
    task: AnyTask, claimed: ClaimedTask, args: list[Any], kwargs: dict[str, Any], worker_id: uuid.UUID | None
) -> AnyResult:
    """Return the result that task code and listeners see while an attempt runs, with its earlier attempts."""
    errors, workers = _history(claimed)
    return TaskResult(
        task=task,
        id=str(claimed.id),
        status=TaskResultStatus.RUNNING,
        enqueued_at=claimed.created_at,
        started_at=claimed.started_at,
        finished_at=None,
        last_attempted_at=claimed.started_at,
        args=args,
        kwargs=kwargs,
        backend=task.backend,
        errors=errors,
        worker_ids=[*workers, str(worker_id)],
    )


def _history(claimed: ClaimedTask) -> tuple[list[TaskError], list[str]]:
    """Return errors and workers of earlier attempts; of a first try there are none, and nothing is asked for."""
    if claimed.failures == 0:
        return [], []
    try:
        return earlier_attempts(claimed.id)
    except Exception:  # noqa: BLE001 - no database now, or not from an event loop: the attempt runs all the same
        return [], []


def note_failure(result: AnyResult, failure: TaskFailure, finished_at: Any) -> None:
    """Let the result that code sees say that the attempt failed."""
    result.errors.append(TaskError(exception_class_path=failure.exception_class, traceback=failure.traceback))
    object.__setattr__(result, "status", TaskResultStatus.FAILED)
    object.__setattr__(result, "finished_at", finished_at)


def ended(held: ClaimedAttempt, began: float, error: BaseException) -> Outcome:
    """Return the outcome of an attempt that raised ``error``, which may have put it off."""
    if isinstance(error, Snooze):
        return Outcome(held.task, held.row_time(began), held.row_time(time.monotonic()), snooze=error.seconds)
    if isinstance(error, Throttle):
        if error.scope != "key" or held.task.concurrency_key:
            throttle = Throttling(error.scope, error.seconds)
            return Outcome(held.task, held.row_time(began), held.row_time(time.monotonic()), throttle=throttle)
        error = ValueError(
            "The task raised Throttle for its key, but has none: enqueue it with a concurrency_key, or name another"
            " scope (queue, type)."
        ).with_traceback(error.__traceback__)
    return failed(held, began, error)


def failed(held: ClaimedAttempt, began: float, error: BaseException) -> Outcome:
    """Return the outcome of an attempt that began at ``began`` (monotonic) and raised ``error``."""
    failure = describe(error)
    match error:
        case Retry():
            failure = replace(failure, retry_after=error.after)
        case Discard():
            failure = replace(failure, retriable=False)
        case TaskTimeout():
            message = f"The attempt took longer than its timeout of {held.timeout:g} s."
            failure = replace(failure, reason="timeout", message=message)
        case TaskCancelled():
            failure = replace(failure, reason="cancelled", message="The task was cancelled while it ran.")
    failure = _by_own_backoff(held, failure, error)
    is_last = not failure.retriable or held.task.failures >= held.task.max_retries
    return Outcome(
        held.task,
        held.row_time(began),
        held.row_time(time.monotonic()),
        failure=failure,
        error=error if is_last else None,
    )


def has_backoff(held: ClaimedAttempt) -> bool:
    """Return whether the task has a function of the project that says when it is tried again."""
    return getattr(registry.known(held.task.task_type), "backoff", None) is not None


def _by_own_backoff(held: ClaimedAttempt, failure: TaskFailure, error: BaseException) -> TaskFailure:
    """Let the task's ``backoff`` say when it is tried again; what the attempt itself said comes before it."""
    claimed = held.task
    task = registry.known(claimed.task_type)
    decided = not failure.retriable or failure.retry_after is not None or failure.reason == "cancelled"
    if decided or claimed.failures >= claimed.max_retries or not has_backoff(held):
        return failure
    try:
        assert task is not None  # noqa: S101 - for the type checker: it has a backoff
        result = seen_result(task, claimed, json.loads(claimed.args), json.loads(claimed.parameters), claimed.worker_id)
        note_failure(result, failure, held.row_time(time.monotonic()))
        wait = next_try(task, error, result)
    except Exception:  # noqa: BLE001 - whatever the project's function raises, the attempt has ended
        _log.exception("The backoff of %s failed; the usual one applies.", claimed.task_type)
        return failure
    return replace(failure, retriable=False) if wait is None else replace(failure, retry_after=wait)


def describe(error: BaseException) -> TaskFailure:
    """Return what an attempt raised, bounded in size and storable in PostgreSQL."""
    kind = type(error)
    try:
        message = str(error)
    except BaseException:  # noqa: BLE001 - a broken __str__ must not hide the failure
        message = "(the exception has no printable message)"
    try:
        text = "".join(TracebackException.from_exception(error, limit=-MAX_FRAMES, compact=True).format())
    except BaseException:  # noqa: BLE001
        text = "(the traceback cannot be formatted)"
    return TaskFailure(
        exception_class=_storable(f"{kind.__module__}.{kind.__qualname__}")[:255],
        message=_storable(message[:MAX_MESSAGE])[:MAX_MESSAGE],
        traceback=_storable(text[-MAX_TRACEBACK:])[-MAX_TRACEBACK:],
    )


def _storable(text: str) -> str:
    return text.replace("\x00", "\\x00").encode("utf-8", "backslashreplace").decode()
