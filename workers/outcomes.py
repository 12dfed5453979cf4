"""The outcome of an attempt as PostgreSQL stores it, and the result that code sees while the attempt runs."""

import json
import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from traceback import TracebackException
from types import TracebackType
from typing import Any

import psycopg
from django.db import Error as DatabaseError
from django.tasks.base import TaskError, TaskResult, TaskResultStatus

from queue_app import registry
from queue_app.core.payload import storable_text
from queue_app.core.records import MAX_MESSAGE, MAX_TRACEBACK, UNMASKED_FACTOR, Outcome, TaskFailure, Throttling
from queue_app.exceptions import (
    Discard,
    InputTooLarge,
    ResultMissing,
    Retry,
    Snooze,
    Suspended,
    TaskCancelled,
    TaskQueueError,
    TaskTimeout,
    Throttle,
    WrongArguments,
)
from queue_app.registry import AnyTask
from queue_app.tasks import AnyResult, next_try
from queue_app.workers.context import ClaimedAttempt

_log = logging.getLogger("taskqueue")

#: Maximum characters before secrets are masked.
_MESSAGE = UNMASKED_FACTOR * MAX_MESSAGE
_TRACEBACK = UNMASKED_FACTOR * MAX_TRACEBACK
MAX_FRAMES = 60
#: Packages between a worker's slot and the function of a task.
_RUNTIME = ("queue_app.workers.", "django.tasks.", "asgiref.", "concurrent.futures.")


class TooLate(Exception):
    """The time is over in which a rate or a minimum delay lets the task start."""


def visible_result(
    task: AnyTask, held: ClaimedAttempt, args: list[Any], kwargs: dict[str, Any], worker: str
) -> AnyResult:
    """Return the result that task code and listeners see while an attempt runs, with its earlier attempts."""
    claimed = held.task
    errors: list[TaskError] = []
    workers: list[str] = []
    if claimed.failures:
        with suppress(Exception):  # without a database, or on an event loop, the attempt runs without its history
            errors, workers = held.store.earlier_attempts(claimed.id)
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
        worker_ids=[*workers, worker],
    )


def set_failed(result: AnyResult, failure: TaskFailure, finished_at: Any) -> None:
    """Turn the result that code sees into that of a failed attempt."""
    result.errors.append(TaskError(exception_class_path=failure.exception_class, traceback=failure.traceback))
    object.__setattr__(result, "status", TaskResultStatus.FAILED)
    object.__setattr__(result, "finished_at", finished_at)


def ended(held: ClaimedAttempt, began: float, error: BaseException) -> Outcome:
    """Return the outcome of an attempt that raised ``error``: a failure, or a request to run again later."""
    if isinstance(error, TooLate):
        return held.outcome(began, is_late=True)
    if isinstance(error, Suspended) and error.seconds is None:
        return held.outcome(began, waits=True)
    if isinstance(error, Snooze | Suspended):
        return held.outcome(began, snooze=error.seconds)
    if isinstance(error, Throttle):
        if error.scope != "key" or held.task.concurrency_key:
            return held.outcome(began, throttle=Throttling(error.scope, error.seconds))
        error = ValueError(
            "The task raised Throttle for its concurrency key, but has no key: enqueue it with a concurrency_key, or"
            " name another scope (queue, type)."
        ).with_traceback(error.__traceback__)
    return failed(held, began, error)


def failed(held: ClaimedAttempt, began: float, error: BaseException) -> Outcome:
    """Return the outcome of an attempt that began at ``began`` (monotonic) and raised ``error``."""
    failure = describe(error)
    match error:
        case Retry():
            failure = replace(failure, retry_after=error.after)
        case Discard() | ResultMissing() | InputTooLarge():
            failure = replace(failure, retriable=False)
        case WrongArguments() if error.task_type == held.task.task_type:  # a retry would get the same arguments
            failure = replace(failure, retriable=False)
        case TaskTimeout():
            message = f"The attempt took longer than its timeout of {held.timeout:g} s."
            failure = replace(failure, reason="timeout", message=message)
        case TaskCancelled():
            failure = replace(failure, reason="cancelled", message="The task was cancelled while it ran.")
    failure = _apply_backoff(held, failure, error)
    is_last = not failure.retriable or held.task.failures >= held.task.max_retries
    return held.outcome(began, failure=failure, error=error if is_last else None)


@contextmanager
def interruption_first(held: ClaimedAttempt) -> Iterator[None]:
    """Raise the interruption of the attempt instead of an error of the database, which becomes its cause.

    An interruption in the middle of a query leaves a connection that cannot be rolled back. Django then raises an error
    of the database while it leaves ``atomic()``, which is only a consequence.
    """
    try:
        yield
    except (DatabaseError, psycopg.Error) as error:
        if held.interruption is None:
            raise
        raise held.interruption() from error


def has_backoff(held: ClaimedAttempt) -> bool:
    """Return whether the task has a ``backoff`` function of the project, which decides when it runs again."""
    return getattr(registry.known(held.task.task_type), "backoff", None) is not None


def _apply_backoff(held: ClaimedAttempt, failure: TaskFailure, error: BaseException) -> TaskFailure:
    """Let the task's ``backoff`` decide when the task runs again, unless the attempt itself has decided."""
    claimed = held.task
    task = registry.known(claimed.task_type)
    decided = not failure.retriable or failure.retry_after is not None or failure.reason == "cancelled"
    if decided or claimed.failures >= claimed.max_retries or not has_backoff(held):
        return failure
    try:
        assert task is not None  # noqa: S101 - for the type checker: it has a backoff
        args, kwargs = json.loads(claimed.args), json.loads(claimed.parameters)
        result = visible_result(task, held, args, kwargs, str(claimed.worker_id))
        set_failed(result, failure, held.row_time(time.monotonic()))
        wait = next_try(task, error, result)
    except Exception:  # noqa: BLE001 - an error of the project's function must not lose the outcome
        _log.exception("The backoff of %s failed; the usual one applies.", claimed.task_type)
        return failure
    return replace(failure, retriable=False) if wait is None else replace(failure, retry_after=wait)


def describe(error: BaseException) -> TaskFailure:
    """Return the failure that an exception stands for, bounded in size and storable_text in PostgreSQL."""
    kind = type(error)
    try:
        message = str(error)
    except BaseException:  # noqa: BLE001 - a broken __str__ must not hide the failure
        message = "(the exception has no printable message)"
    try:
        # An error of the queue itself, outside of the function, says what to do; our frames would only hide it.
        frames = _without_runtime(error.__traceback__) or (
            None if isinstance(error, TaskQueueError) else error.__traceback__
        )
        text = "".join(TracebackException(kind, error, frames, limit=-MAX_FRAMES, compact=True).format())
    except BaseException:  # noqa: BLE001
        text = "(the traceback cannot be formatted)"
    return TaskFailure(
        exception_class=storable_text(f"{kind.__module__}.{kind.__qualname__}"[:_MESSAGE]),
        message=storable_text(message[:_MESSAGE]),
        traceback=storable_text(text[-_TRACEBACK:]),
    )


def _without_runtime(frames: TracebackType | None) -> TracebackType | None:
    """Return a traceback from the frame of the task's function on; ``None`` if the error was raised outside of it."""
    found = frames
    while found is not None and str(found.tb_frame.f_globals.get("__name__")).startswith(_RUNTIME):
        found = found.tb_next
    return found
