"""One attempt of one task, as a pipeline: resolve, decode, call, encode."""

from __future__ import annotations

import asyncio
import json
import logging
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from traceback import TracebackException
from typing import Any, NamedTuple

from django.dispatch import Signal
from django.tasks.base import TaskError, TaskResult, TaskResultStatus
from django.tasks.signals import task_finished, task_started

from queue_app import registry, tracing
from queue_app.backend import has_audience
from queue_app.core.records import ClaimedTask, Outcome, TaskFailure, Throttling
from queue_app.exceptions import Discard, Retry, Snooze, TaskCancelled, TaskTimeout, Throttle
from queue_app.registry import AnyTask
from queue_app.services.validate import result_text
from queue_app.tasks import AnyResult, next_try
from workers import capture
from workers.context import DEAF, Board, Held, QueueTaskContext
from workers.transport import earlier_attempts

_log = logging.getLogger("taskqueue")

MAX_MESSAGE = 2_000  # characters
MAX_TRACEBACK = 20_000  # characters; the end of it is kept
MAX_FRAMES = 60


class Executor:
    """Runs attempts on behalf of one worker; used by all its slots at once."""

    def __init__(self, worker_id: uuid.UUID | None, board: Board = DEAF) -> None:
        self.worker_id = worker_id
        self.board = board

    def run(self, held: Held) -> Outcome:
        """Run one attempt and return how it ended; never raises."""
        began = time.monotonic()
        tokens = capture.enter(held, self.board)
        try:
            with tracing.attempt(held.task):
                call = self._prepare(held)
                result = self._complete(held, call, lambda: call.task.call(*call.args, **call.kwargs))
        except BaseException as error:  # noqa: BLE001 - SystemExit in a task is the task's failure, not the worker's
            return ended(held, began, error)
        finally:
            capture.leave(tokens)
        return Outcome(held.task, held.row_time(began), held.row_time(time.monotonic()), result)

    async def arun(self, held: Held) -> Outcome:
        """Run one attempt of a coroutine function on the running loop; as ``run``, in a task of its own."""
        began = time.monotonic()
        capture.enter(held, self.board)  # for this asyncio task, whose context nobody else sees
        try:
            with tracing.attempt(held.task):
                call = self._prepare(held)
                with self._told(held, call):
                    value = await call.task.func(*call.args, **call.kwargs)
                    text = result_text(value)
                self._tell_completed(held, call, text)
        except asyncio.CancelledError as error:
            if held.interruption is None:  # the task cancelled itself
                return ended(held, began, error)
            return ended(held, began, held.interruption())
        except BaseException as error:  # noqa: BLE001 - as in ``run``
            return ended(held, began, error)
        return Outcome(held.task, held.row_time(began), held.row_time(time.monotonic()), text)

    def _prepare(self, held: Held) -> _Call:
        """Find the function and decode what it is called with; tell listeners that it starts."""
        claimed = held.task
        task = registry.get(claimed.task_type)
        args: list[Any] = json.loads(claimed.args)
        kwargs: dict[str, Any] = json.loads(claimed.parameters)
        seen = seen_result(task, claimed, args, kwargs, self.worker_id) if _wants_result(task) else None
        _send(task_started, task, seen)
        if task.takes_context and seen is not None:
            number = claimed.failures + 1
            args = [QueueTaskContext(task_result=seen, attempt_number=number, held=held, board=self.board), *args]
        return _Call(task, args, kwargs, seen)

    def _complete(self, held: Held, call: _Call, function: Callable[[], Any]) -> str | None:
        """Call the function; return its result as JSON text, ``None`` for null."""
        if call.seen is None:
            return result_text(function())
        with self._told(held, call):
            text = result_text(function())
        self._tell_completed(held, call, text)
        return text

    @contextmanager
    def _told(self, held: Held, call: _Call) -> Iterator[None]:
        """Tell listeners of a failure in the block."""
        try:
            yield
        except (Snooze, Throttle):  # not finished: it comes back
            raise
        except BaseException as error:
            if call.seen is not None:
                _note_failure(call.seen, describe(error), held.row_time(time.monotonic()))
                _send(task_finished, call.task, call.seen)
            raise

    def _tell_completed(self, held: Held, call: _Call, text: str | None) -> None:
        if call.seen is not None:
            object.__setattr__(call.seen, "status", TaskResultStatus.SUCCESSFUL)
            object.__setattr__(call.seen, "finished_at", held.row_time(time.monotonic()))
            object.__setattr__(call.seen, "_return_value", None if text is None else json.loads(text))
            _send(task_finished, call.task, call.seen)


class _Call(NamedTuple):
    """A function, what it is called with, and what listeners see of it (``None``: there are none)."""

    task: AnyTask
    args: list[Any]
    kwargs: dict[str, Any]
    seen: AnyResult | None


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


def _wants_result(task: AnyTask) -> bool:
    return task.takes_context or has_audience(task_started, logging.INFO) or has_audience(task_finished, logging.INFO)


def _send(signal: Signal, task: AnyTask, result: AnyResult | None) -> None:
    if result is not None and has_audience(signal, logging.INFO):
        # robust: whoever listens has no say in how the attempt ended
        signal.send_robust(type(task.get_backend()), task_result=result)


def _note_failure(result: AnyResult, failure: TaskFailure, finished_at: Any) -> None:
    result.errors.append(TaskError(exception_class_path=failure.exception_class, traceback=failure.traceback))
    object.__setattr__(result, "status", TaskResultStatus.FAILED)
    object.__setattr__(result, "finished_at", finished_at)


def ended(held: Held, began: float, error: BaseException) -> Outcome:
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


def failed(held: Held, began: float, error: BaseException) -> Outcome:
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


def _by_own_backoff(held: Held, failure: TaskFailure, error: BaseException) -> TaskFailure:
    """Let the task's ``backoff`` say when it is tried again; what the attempt itself said comes before it."""
    claimed = held.task
    task = registry.known(claimed.task_type)
    decided = not failure.retriable or failure.retry_after is not None or failure.reason == "cancelled"
    if decided or claimed.failures >= claimed.max_retries or getattr(task, "backoff", None) is None:
        return failure
    try:
        assert task is not None  # noqa: S101 - for the type checker: it has a backoff
        result = seen_result(task, claimed, json.loads(claimed.args), json.loads(claimed.parameters), claimed.worker_id)
        _note_failure(result, failure, held.row_time(time.monotonic()))
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
