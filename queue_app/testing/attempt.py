"""Run one attempt of a task in memory, as a worker does, by the test's clock."""

import json
import logging
from collections.abc import Callable
from datetime import datetime, timedelta
from traceback import format_exception
from typing import Any

from django.tasks.base import TaskError, TaskResultStatus
from django.tasks.signals import task_finished, task_started
from django.utils import timezone

from queue_app import codecs, conf, registry
from queue_app.core.events import Ended
from queue_app.core.failures import retry_delay
from queue_app.core.records import ClaimedTask, Outcome, TaskFailure
from queue_app.core.states import Status, predicate
from queue_app.exceptions import Discard, InputTooLarge, ResultMissing, Retry, Snooze, Suspended, TaskTimeout
from queue_app.hooks import after_end, around_run
from queue_app.hooks.callbacks import follows
from queue_app.services.enqueue.validate import result_text
from queue_app.services.lifecycle.results import input_text
from queue_app.tasks import AnyResult, next_try
from queue_app.testing import steps
from queue_app.testing.override import claimed
from queue_app.testing.stored import StoredCall
from queue_app.workers.steps import AttemptSteps

WORKER = "memory"
_FINAL = (Discard, ResultMissing, InputTooLarge)  # errors after which no retry helps
_log = logging.getLogger("taskqueue.testing")  # test runners show it with a failed test


def run(
    call: StoredCall,
    retries: int,
    timeout: float,
    *,
    sender: type[object],
    result_of: Callable[[StoredCall], AnyResult],
) -> None:
    """Run one attempt; ``retries`` and ``timeout`` are defaults for the task's own. ``sender`` sends the signals."""
    now = timezone.now()
    call.status, call.started_at = Status.EXECUTING, now
    call.first_started_at = call.first_started_at or now
    call.worker_ids.append(WORKER)
    call.extended = 0.0
    seen = result_of(call)
    task_started.send_robust(sender, task_result=seen)
    try:
        value = _call(call, seen)
        _check_time(call, now, timeout)
    except KeyboardInterrupt:
        raise
    except (Snooze, Suspended) as delay:
        call.worker_ids.pop()
        if delay.seconds is None:
            steps.wait(call)
        else:
            _later(call, delay.seconds)
        return
    except BaseException as error:  # noqa: BLE001 - like a worker: any exception is a failure
        attempted = claimed(call)
        _fail(call, error, retries, result_of)
        _call_hooks(attempted, call, error)
    else:
        call.value, call.status, call.finished_at = value, Status.COMPLETED, timezone.now()
        _call_hooks(claimed(call), call)
    if call.finished_at is not None:
        _call_back(call)
        task_finished.send_robust(sender, task_result=result_of(call))


def _call_back(call: StoredCall) -> None:
    """Enqueue the callback of a call that has ended."""
    ended = claimed(call)
    if (found := follows(ended, call.status, call.metadata)) is not None:
        task_type, args = found
        registry.get(task_type).enqueue(*args)


def _call_hooks(attempted: ClaimedTask, call: StoredCall, error: BaseException | None = None) -> None:
    now, failure = timezone.now(), None
    if error is not None:
        last = call.errors[-1]
        failure = TaskFailure(last.exception_class_path, str(error), last.traceback)
    wait = (call.run_after - now).total_seconds() if call.run_after and call.status is Status.SCHEDULED else None
    after_end([Ended(Outcome(attempted, call.started_at or now, now, failure=failure), call.status, wait)])


def _call(call: StoredCall, seen: AnyResult) -> str | None:
    text = None  # the result if a hook suppresses an error
    with around_run(claimed(call)):
        text = _function(call, seen)
    return text  # noqa: RET504 - see above


def _function(call: StoredCall, seen: AnyResult) -> str | None:
    args, kwargs = json.loads(call.args), json.loads(call.kwargs)
    if call.workflow is not None:
        args, kwargs = call.workflow.filled(args), call.workflow.filled(kwargs)
        for field, value in ("args", args), ("parameters", kwargs):
            input_text(value, field)
    if codecs.may_hold_forms(call.args, call.kwargs):
        args, kwargs = codecs.decode_call(args, kwargs)
    if call.task.takes_context:
        attempted = AttemptSteps(steps.MemorySteps(call), lambda: timezone.now(), is_first=False)  # noqa: PLW0108 - patched
        context = steps.MemoryContext(task_result=seen, attempt_number=call.failures + 1, steps=attempted, call=call)
        value = call.task.call(context, *args, **kwargs)
        attempted.check_end()
        return result_text(value)
    return result_text(call.task.call(*args, **kwargs))


def _check_time(call: StoredCall, began: datetime, timeout: float) -> None:
    """Fail an attempt in which the test moved the clock past the timeout; a worker would have interrupted it."""
    own = call.option("timeout")
    allowed = timedelta(seconds=timeout) if own is None else _delta(own)
    allowed = allowed * conf.get().retry.timeout_factor ** call.failures + timedelta(seconds=call.extended)
    if timezone.now() - began > allowed:
        raise TaskTimeout(f"The attempt took longer than its timeout of {allowed.total_seconds():g} s.")


def _fail(call: StoredCall, error: BaseException, retries: int, result_of: Callable[[StoredCall], AnyResult]) -> None:
    kind = type(error)
    call.errors.append(
        TaskError(
            exception_class_path=f"{kind.__module__}.{kind.__qualname__}", traceback="".join(format_exception(error))
        )
    )
    call.failures += 1
    own = call.option("max_retries")
    if not isinstance(error, _FINAL) and call.failures > (retries if own is None else own):
        _end(call, Status.DEAD_LETTER, error)
    elif isinstance(error, _FINAL) or (wait := _wait(call, error, result_of)) is None:
        _end(call, Status.FAILED, error)
    else:
        _later(call, wait)


def _wait(call: StoredCall, error: BaseException, result_of: Callable[[StoredCall], AnyResult]) -> float | None:
    """Return the seconds until the next attempt, without jitter; ``None`` if the task is not retried."""
    if isinstance(error, Retry) and error.after is not None:
        return error.after
    if call.option("backoff") is not None:
        seen = result_of(call)
        object.__setattr__(seen, "status", TaskResultStatus.FAILED)
        return next_try(call.task, error, seen)  # its exceptions reach the test
    settings = conf.get().retry
    own: Any = call.option("retry_delay")
    base = settings.base_seconds if own is None else _delta(own).total_seconds()
    return retry_delay(call.failures, base=base, cap=max(base, settings.cap_seconds))


def _later(call: StoredCall, seconds: float) -> None:
    call.status, call.queued_at = Status.SCHEDULED, None
    call.run_after = timezone.now() + timedelta(seconds=seconds)


def _end(call: StoredCall, status: Status, error: BaseException) -> None:
    call.status, call.finished_at = status, timezone.now()
    _log.error("The task %s %s.", registry.type_of(call.task), predicate(status), exc_info=error)


def _delta(value: float | timedelta) -> timedelta:
    return value if isinstance(value, timedelta) else timedelta(seconds=value)
