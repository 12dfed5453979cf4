"""One attempt of one task, as a pipeline: resolve, decode, call, encode."""

from __future__ import annotations

import json
import logging
import time
import uuid
from dataclasses import dataclass, field, replace
from datetime import timedelta
from traceback import TracebackException
from typing import TYPE_CHECKING, Any

from django.dispatch import Signal
from django.tasks.base import TaskContext, TaskError, TaskResult, TaskResultStatus
from django.tasks.signals import task_finished, task_started

from queue_app import conf, registry
from queue_app.backend import has_audience
from queue_app.core.payload import dump_json
from queue_app.core.records import ClaimedTask, Outcome, TaskFailure
from queue_app.exceptions import Discard, Retry, Snooze, TaskCancelled, TaskTimeout
from queue_app.registry import AnyTask
from queue_app.services.results import earlier_attempts
from queue_app.tasks import AnyResult, next_try

if TYPE_CHECKING:
    _TaskContext = TaskContext[..., Any]  # generic in the stubs only
else:
    _TaskContext = TaskContext

_log = logging.getLogger("taskqueue")

MAX_MESSAGE = 2_000  # characters
MAX_TRACEBACK = 20_000  # characters; the end of it is kept
MAX_FRAMES = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueTaskContext(_TaskContext):  # type: ignore[misc] # frozen in Django, not in its stubs
    """What a task sees of its own run, when it takes a ``context``."""

    attempt_number: int = field(default=1)

    @property
    def attempt(self) -> int:
        """The number of this try: 1 for the first, one more after each failure."""
        return self.attempt_number


@dataclass(slots=True)
class Held:
    """A task in this worker's hands, and when the claim's answer arrived (monotonic, s)."""

    task: ClaimedTask
    claimed_at: float

    def row_time(self, at: float) -> Any:
        """Return the monotonic time ``at`` by the database's clock, as far as the claim tells it."""
        return self.task.started_at + timedelta(seconds=at - self.claimed_at)


class Executor:
    """Runs attempts on behalf of one worker; used by all its slots at once."""

    def __init__(self, worker_id: uuid.UUID) -> None:
        self.worker_id = worker_id

    def run(self, held: Held) -> Outcome:
        """Run one attempt and return how it ended; never raises."""
        began = time.monotonic()
        try:
            result = self._call(held)
        except Snooze as snooze:
            return Outcome(held.task, held.row_time(began), held.row_time(time.monotonic()), snooze=snooze.seconds)
        except BaseException as error:  # noqa: BLE001 - SystemExit in a task is the task's failure, not the worker's
            return failed(held, began, error)
        return Outcome(held.task, held.row_time(began), held.row_time(time.monotonic()), result)

    def _call(self, held: Held) -> str | None:
        """Call the task function; return its result as JSON text, ``None`` for null."""
        claimed = held.task
        task = registry.get(claimed.task_type)
        args: list[Any] = json.loads(claimed.args)
        kwargs: dict[str, Any] = json.loads(claimed.parameters)
        seen = seen_result(task, claimed, args, kwargs, self.worker_id) if _wants_result(task) else None
        _send(task_started, task, seen)
        try:
            if task.takes_context and seen is not None:
                args = [QueueTaskContext(task_result=seen, attempt_number=claimed.failures + 1), *args]
            value = task.call(*args, **kwargs)
            text = None if value is None else dump_json(_plain(value), field="result", limits=conf.get().payload)
        except Snooze:  # not finished: it comes back
            raise
        except BaseException as error:
            if seen is not None:
                _note_failure(seen, describe(error), held.row_time(time.monotonic()))
                _send(task_finished, task, seen)
            raise
        if seen is not None:
            object.__setattr__(seen, "status", TaskResultStatus.SUCCESSFUL)
            object.__setattr__(seen, "finished_at", held.row_time(time.monotonic()))
            object.__setattr__(seen, "_return_value", None if text is None else json.loads(text))
            _send(task_finished, task, seen)
        return text


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


def _plain(value: Any) -> Any:
    """Return tuples at the top as lists, as JSON will give them back; the rest is checked as it is."""
    return list(value) if isinstance(value, tuple) else value


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


def failed(held: Held, began: float, error: BaseException) -> Outcome:
    """Return the outcome of an attempt that began at ``began`` (monotonic) and raised ``error``."""
    failure = describe(error)
    match error:
        case Retry():
            failure = replace(failure, retry_after=error.after)
        case Discard():
            failure = replace(failure, retriable=False)
        case TaskTimeout():
            message = f"The attempt took longer than its timeout of {held.task.timeout:g} s."
            failure = replace(failure, reason="timeout", message=message)
        case TaskCancelled():
            failure = replace(failure, reason="cancelled", message="The task was cancelled while it ran.")
    failure = _by_own_backoff(held, failure, error)
    return Outcome(held.task, held.row_time(began), held.row_time(time.monotonic()), failure=failure)


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
