"""One attempt of one task, as a pipeline: resolve, decode, call, encode."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import time
import uuid
from collections.abc import Callable
from contextlib import AsyncExitStack, suppress
from contextvars import copy_context
from typing import Any, Final, NamedTuple

from asgiref.sync import sync_to_async
from django.dispatch import Signal
from django.tasks.base import TaskResultStatus
from django.tasks.signals import task_finished, task_started

from queue_app import codecs, registry
from queue_app.backend.results import has_receivers
from queue_app.core.records import ClaimedTask, Outcome
from queue_app.core.redaction import is_sealed
from queue_app.core.signatures import check_arguments
from queue_app.encryption import call_of
from queue_app.exceptions import (
    ArgumentUndecryptable,
    EncryptionUnavailable,
    Snooze,
    Suspended,
    Throttle,
    Undecryptable,
)
from queue_app.hooks import around_run, enter_async
from queue_app.registry import AnyTask
from queue_app.services.enqueue.validate import result_text
from queue_app.services.lifecycle.results import refers, with_results
from queue_app.tasks import AnyResult
from queue_app.telemetry import tracing
from queue_app.workers import progress, sessions
from queue_app.workers.context import NO_REPORTS, ClaimedAttempt, ProgressSink, QueueTaskContext
from queue_app.workers.outcomes import (
    TooLate,
    describe,
    ended,
    has_backoff,
    interruption_first,
    set_failed,
    visible_result,
)

logger = logging.getLogger("taskqueue")

#: Interval at which a reason to leave tasks to other workers is logged.
LEFT_SECONDS: Final = 60.0


class Executor:
    """Runs attempts for one worker; all its slots share it."""

    def __init__(self, worker_id: uuid.UUID | None, reports: ProgressSink = NO_REPORTS, name: str = "") -> None:
        self.worker_id = worker_id
        self.worker_name = name  # a slot process learns it with each task
        self.reports = reports
        #: Whether the thread that asgiref uses for calls from coroutines may have database sessions.
        self.has_shared_sessions: Callable[[], bool] = lambda: True
        self._left: dict[tuple[str, str], float] = {}  # (task type, why left to another worker) -> last reported

    def run(self, held: ClaimedAttempt) -> Outcome:
        """Run one attempt in a context of its own and return its outcome; never raise.

        What the attempt sets in its context (language, time zone, decimal precision, variables) ends with it.
        """
        pid = os.getpid()
        try:
            return copy_context().run(self._run, held)
        finally:
            _end_fork(pid)

    def _run(self, held: ClaimedAttempt) -> Outcome:
        began = time.monotonic()
        if self._is_late(held, began):
            return held.outcome(began, is_late=True)
        progress.enter(held, self.reports)
        try:
            with tracing.attempt(held):
                call = self._prepare(held)
                result = self._complete(held, call, call.run)
        except BaseException as error:  # noqa: BLE001 - SystemExit in a task is the task's failure, not the worker's
            return ended(held, began, error)
        return held.outcome(began, result)

    async def arun(self, held: ClaimedAttempt) -> Outcome:
        """Run one attempt of a coroutine function on the running loop, in an asyncio task of its own.

        Code that may block (the look-up of earlier attempts, listeners, a backoff of the project)
        runs in the thread that asgiref uses for calls from coroutines.
        """
        pid = os.getpid()
        try:
            return await self._arun(held)
        finally:
            _end_fork(pid)

    async def _arun(self, held: ClaimedAttempt) -> Outcome:
        began = time.monotonic()
        if self._is_late(held, began):
            return held.outcome(began, is_late=True)
        progress.enter(held, self.reports)  # in the context of this asyncio task only
        try:
            with tracing.attempt(held):
                may_block = held.task.failures > 0 or refers(held.task) or has_receivers(task_started, logging.INFO)
                call = await _call_in_thread_if(may_block, self._prepare, held)
                text = await self._acomplete(held, call)
        except GeneratorExit:  # the loop was closed
            raise
        except asyncio.CancelledError as error:
            # Without an interruption the task has cancelled itself.
            return await _outcome_of(held, began, held.interruption() if held.interruption else error)
        except BaseException as error:  # noqa: BLE001 - as in ``run``
            return await _outcome_of(held, began, error)
        return held.outcome(began, text)

    def _is_late(self, held: ClaimedAttempt, now: float) -> bool:
        """Whether the limit that let the task start may have let others start in its place since."""
        is_late = held.task.start_by is not None and now > held.task.start_by
        if is_late:
            why = "more than 1 s passed after their claim, so a start could exceed a rate or a minimum delay"
            self._report_left(held.task.task_type, f"go back to their places: {why}")
        return is_late

    def _prepare(self, held: ClaimedAttempt) -> _Call:
        """Find the function, decode its arguments, and tell listeners that the attempt starts."""
        claimed = held.task
        task = registry.find(claimed.task_type) or registry.get(
            claimed.task_type
        )  # which raises and names similar ones
        held.task = claimed = with_results(claimed)
        args: list[Any] = json.loads(claimed.args)
        kwargs: dict[str, Any] = json.loads(claimed.parameters)
        try:
            if is_sealed(args):  # it could not be decrypted when it was claimed
                args, kwargs = _readable(claimed)
            if claimed.metadata is not None or getattr(task, "version", 1) > 1:
                args, kwargs = registry.arguments_of(task, claimed.metadata, args, kwargs)
        except Snooze as error:
            self._report_left(claimed.task_type, f"wait for another worker: {error}")
            raise
        check_arguments(task, args, kwargs)
        seen = (
            visible_result(task, held, args, kwargs, self.worker_name or str(self.worker_id))
            if _wants_result(task)
            else None
        )
        _send(task_started, task, seen)
        if task.takes_context and seen is not None:
            number = claimed.failures + 1
            args = [QueueTaskContext(task_result=seen, attempt_number=number, held=held, reports=self.reports), *args]
        is_coded = codecs.may_hold_forms(claimed.args, claimed.parameters)
        return _Call(task, args, kwargs, seen, is_coded, claimed.start_by)

    def _report_left(self, task_type: str, why: str) -> None:
        """Log, at most once a minute, why this process leaves a task to a later claim, perhaps of another worker."""
        now = time.monotonic()
        if now - self._left.get((task_type, why), -LEFT_SECONDS) >= LEFT_SECONDS:
            self._left[task_type, why] = now
            logger.warning("tasks of %s %s", task_type, why)

    def _complete(self, held: ClaimedAttempt, call: _Call, function: Callable[[], Any]) -> str | None:
        """Call the function; return its result as JSON text, ``None`` for null."""
        text = None  # the result if a hook suppresses an error
        try:
            with interruption_first(held), around_run(held.task):
                text = _end(held, function())
            sessions.check_committed()
        except (Snooze, Suspended, Throttle, TooLate):  # the task will run again later; it has not ended
            raise
        except BaseException as error:
            self._notify_failed(held, call, error)
            raise
        self._notify_completed(held, call, text)
        return text

    async def _acomplete(self, held: ClaimedAttempt, call: _Call) -> str | None:
        """Do the same as ``_complete`` for a coroutine function."""
        may_block = call.seen is not None and has_receivers(task_finished, logging.ERROR)
        text = None
        try:
            with interruption_first(held):
                async with AsyncExitStack() as stack:
                    await enter_async(stack, held.task)
                    args, kwargs = await _call_in_thread_if(call.is_coded, call.real)
                    text = _end(held, await call.task.func(*args, **kwargs))
            if self.has_shared_sessions():
                await sync_to_async(sessions.check_committed)()
        except (Snooze, Suspended, Throttle, TooLate, GeneratorExit):
            raise
        except BaseException as error:
            await _call_in_thread_if(may_block, self._notify_failed, held, call, error)
            raise
        await _call_in_thread_if(may_block, self._notify_completed, held, call, text)
        return text

    def _notify_failed(self, held: ClaimedAttempt, call: _Call, error: BaseException) -> None:
        if call.seen is not None:
            set_failed(call.seen, describe(error), held.row_time(time.monotonic()))
            _send(task_finished, call.task, call.seen, level=logging.ERROR)

    def _notify_completed(self, held: ClaimedAttempt, call: _Call, text: str | None) -> None:
        if call.seen is not None:
            object.__setattr__(call.seen, "status", TaskResultStatus.SUCCESSFUL)
            object.__setattr__(call.seen, "finished_at", held.row_time(time.monotonic()))
            value = None if text is None else codecs.real_result(json.loads(text))
            object.__setattr__(call.seen, "_return_value", value)
            _send(task_finished, call.task, call.seen)


class _Call(NamedTuple):
    """A function, its arguments, and the result that listeners see (``None`` if there are no listeners)."""

    task: AnyTask
    args: list[Any]
    kwargs: dict[str, Any]
    seen: AnyResult | None
    is_coded: bool
    start_by: float | None

    def real(self) -> tuple[list[Any], dict[str, Any]]:
        """Return the arguments with real values; the hooks have restored their context before.

        The function is called next. What comes before may have waited for a server: raises ``TooLate``.
        """
        found = codecs.decode_call(self.args, self.kwargs) if self.is_coded else (self.args, self.kwargs)
        if self.start_by is not None and time.monotonic() > self.start_by:
            raise TooLate
        return found

    def run(self) -> Any:
        """Call the function."""
        args, kwargs = self.real()
        return self.task.call(*args, **kwargs)


def _readable(task: ClaimedTask) -> tuple[list[Any], dict[str, Any]]:
    """Return the arguments of an encrypted task; leave it to a worker with the key, and fail one that was changed."""
    try:
        return call_of(task.task_type, task.args, "{}")
    except EncryptionUnavailable as error:
        raise Snooze(registry.NEXT_OFFER, str(error)) from None
    except Undecryptable as error:
        if error.is_key_missing:
            raise Snooze(registry.NEXT_OFFER, str(error)) from None
        raise ArgumentUndecryptable(str(error)) from None


def _end(held: ClaimedAttempt, result: Any) -> str | None:
    """Return a function's result as JSON text, unless its steps say that it has not ended."""
    if held.steps is not None:
        held.steps.check_end()
    return result_text(result)


def _wants_result(task: AnyTask) -> bool:
    return (
        task.takes_context or has_receivers(task_started, logging.INFO) or has_receivers(task_finished, logging.ERROR)
    )


def _send(signal: Signal, task: AnyTask, result: AnyResult | None, *, level: int = logging.INFO) -> None:
    if result is not None and has_receivers(signal, level):
        # robust: an error of a listener must not change the outcome
        signal.send_robust(type(task.get_backend()), task_result=result)


def _end_fork(pid: int) -> None:
    """End this process if the attempt, which began in process ``pid``, forked it; it must not act as a worker."""
    if os.getpid() != pid:
        os._exit(1)


async def _call_in_thread_if[**P, T](blocks: object, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Call a function, in asgiref's thread if the function ``blocks``, else on the event loop."""
    return await sync_to_async(function)(*args, **kwargs) if blocks else function(*args, **kwargs)


async def _outcome_of(held: ClaimedAttempt, began: float, error: BaseException) -> Outcome:
    """Do the same as ``ended``; ignore an interruption that arrives now, because the pool needs the outcome."""
    if not has_backoff(held):
        return ended(held, began, error)
    ending = asyncio.ensure_future(sync_to_async(ended)(held, began, error))
    while not ending.done():
        with suppress(asyncio.CancelledError):
            await asyncio.shield(ending)
    return ending.result()
