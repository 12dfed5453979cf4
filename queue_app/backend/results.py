"""Make the ``TaskResult`` that callers and signals of ``django.tasks`` see, of a new task or of a stored one.

A decorator imports this module by way of the backend, perhaps while the apps are still loading, so
functions import models when they need them.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
import uuid
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import fields
from datetime import datetime, timedelta
from types import NoneType
from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast

from asgiref.sync import sync_to_async
from django.core.signing import Signer
from django.db.transaction import TransactionManagementError
from django.dispatch import Signal
from django.tasks.base import TaskError, TaskResult, TaskResultStatus
from django.urls import reverse
from django.utils.asyncio import async_unsafe
from django.utils.json import normalize_json

from queue_app import codecs, registry
from queue_app.core import rooms
from queue_app.core.ids import Id, parse_id
from queue_app.core.options import OPTIONS
from queue_app.core.priorities import band_from_django, django_priority
from queue_app.core.records import Enqueued
from queue_app.core.redaction import is_sealed
from queue_app.core.states import TERMINAL, WAITING, Status
from queue_app.encryption import call_of, opened_if
from queue_app.exceptions import EncryptionUnavailable, TaskFailed, TaskNotFound, Undecryptable
from queue_app.registry import AnyTask
from queue_app.tasks import AnyResult, QueueTask

if TYPE_CHECKING:
    from queue_app.core.reasons import Explanation
    from queue_app.models import Task, TaskAttempt, TaskPayload
    from queue_app.workflows.store import StoredWorkflow


# The result of a task, as ``enqueue`` returns it: Django's, with what this queue can do with a stored task.
#
# The methods ask the backend of the task: in a test, its ``wait_for`` runs tasks.

if TYPE_CHECKING:
    from queue_app.core.reasons import Explanation
    from queue_app.models import Task as TaskModel

    class _Base[**P, R](TaskResult[P, R]):
        """Django's class, which is only generic in the stubs."""

else:

    class _Base(TaskResult):
        """Django's class, which is only generic in the stubs."""

        __slots__ = ()

        def __class_getitem__(cls, _parameters: object) -> type:
            return cls


def status_signer() -> Signer:
    """Return the signer of the addresses of status pages; it needs settings."""
    return Signer(salt="queue_app.status")


def address_of(task_id: object) -> str:
    """Return the address of the status page of a task."""
    return reverse("queue_app:task-status", args=[status_signer().sign(str(task_id))])


class Progress(NamedTuple):
    """What a task last reported: a fraction from 0 to 1, and what it does."""

    fraction: float
    message: str
    updated_at: datetime


class QueueTaskResult[**P, R](_Base[P, R]):
    """The result of a task of this queue.

    The fields say what was known when the result was read; ``refresh`` reads them again. Each of the methods and
    properties of this class reads the present state.
    """

    __slots__ = ()

    def get_absolute_url(self) -> str:
        """Return the address of the status page for the user who waits, for ``redirect(result)``."""
        return address_of(self.id)

    def wait(self, timeout: float | timedelta | None = None) -> R:
        """Wait for the end of the task and return its return value.

        Raises ``TaskFailed`` if it ends without success, ``TimeoutError`` after ``timeout`` (s; ``None``: never),
        and ``TransactionManagementError`` inside a transaction, because no worker sees a task before its commit.
        """
        self._backend.wait_for(self.id, timeout)
        self.refresh()
        return self._value()

    async def await_(self, timeout: float | timedelta | None = None) -> R:  # noqa: ASYNC109 - as wait()
        """``wait`` for coroutines; no thread waits."""
        await self._backend.await_for(self.id, timeout)
        await self.arefresh()
        return self._value()

    def cancel(self) -> Status:
        """Cancel the task; return its new status: cancelled, or executing if its worker was asked to stop.

        Raises ``InvalidTransition`` if it has already ended.
        """
        return cast("Status", self._backend.cancel(self.id))

    async def acancel(self) -> Status:
        """``cancel`` for coroutines."""
        return await sync_to_async(self.cancel)()

    def explain(self) -> Explanation:
        """Return why the task is not running (``diagnose.explain``)."""
        return cast("Explanation", self._backend.explain(self.id))

    @property
    def progress(self) -> Progress | None:
        """What the task last reported with ``context.progress``; ``None`` if it has reported nothing."""
        return cast("Progress | None", self._backend.progress_of(self.id))

    @property
    def row(self) -> TaskModel:
        """The row of the task; raises ``TaskNotFound`` if it was purged."""
        return cast("TaskModel", self._backend.row_of(self.id))

    @property
    def children(self) -> list[QueueTaskResult[..., Any]]:
        """The results of the tasks that wait, or waited, for this one in its workflow."""
        return cast("list[QueueTaskResult[..., Any]]", self._backend.children_of(self.id))

    @property
    def _backend(self) -> Any:
        return self.task.get_backend()

    def _value(self) -> R:
        if self.status is TaskResultStatus.FAILED:
            raise TaskFailed(self.id, [(error.exception_class_path, error.traceback) for error in self.errors])
        return self.return_value


# What the backend does for ``QueueTaskResult``; each function takes the id of a task as text or as a UUID.
#
# A decorator imports this module by way of the backend, perhaps while the apps are still loading, so functions import
# services when they need them.

#: One turn of waiting; the rows are read at least as often.
_TURN_SECONDS: Final = 3600.0


class ResultActions:
    """The part of the backend behind ``QueueTaskResult``."""

    def get_result(self, result_id: Id) -> Any:
        """Return the result of a task; the backend does it."""
        raise NotImplementedError

    @async_unsafe("In a coroutine, write `await result.await_(…)`, not wait().")
    def wait_for(self, task_id: Id, seconds: float | timedelta | None) -> None:
        """Wait until a task has ended; raise ``TimeoutError``, and ``TransactionManagementError`` in a transaction."""
        from queue_app.services.notify.subscribe import wait_for_end  # noqa: PLC0415 - needs models

        _refuse_transaction()
        found, seconds = parse_id(task_id), checked_timeout(seconds)
        until = None if seconds is None else time.monotonic() + seconds
        while True:
            left = _TURN_SECONDS if until is None else until - time.monotonic()
            if wait_for_end(found, min(left, _TURN_SECONDS)):
                return
            if until is not None and time.monotonic() >= until:
                raise _timed_out(task_id, seconds)

    async def await_for(self, task_id: Id, seconds: float | timedelta | None) -> None:
        """``wait_for`` for coroutines."""
        from queue_app.services.notify.subscribe import await_end  # noqa: PLC0415 - needs models

        seconds = checked_timeout(seconds)
        if not await await_end(parse_id(task_id), seconds):
            raise await sync_to_async(_timed_out)(task_id, seconds)

    def workflow(self, workflow_id: Id) -> StoredWorkflow:
        """Return a stored workflow."""
        found: StoredWorkflow = rooms.part("StoredWorkflow")(parse_id(workflow_id))
        return found

    @async_unsafe("In a coroutine, write `await handle.await_(…)`, not wait().")
    def wait_for_workflow(self, workflow_id: Id, seconds: float | timedelta | None) -> None:
        """Wait until a workflow has ended; raise as ``wait_for`` does."""
        _refuse_transaction()
        for pause in _pauses(workflow_id, seconds):
            if self.workflow(workflow_id).has_ended:
                return
            time.sleep(pause)

    async def await_workflow(self, workflow_id: Id, seconds: float | timedelta | None) -> None:
        """``wait_for_workflow`` for coroutines."""
        for pause in _pauses(workflow_id, seconds):
            if await sync_to_async(lambda: self.workflow(workflow_id).has_ended)():
                return
            await asyncio.sleep(pause)

    def cancel(self, task_id: Id) -> Status:
        """Cancel a task; return its new status."""
        from queue_app.services.lifecycle.actions import cancel  # noqa: PLC0415 - needs models

        return cancel(task_id)

    def explain(self, task_id: Id) -> Explanation:
        """Return why a task is not running."""
        from queue_app.diagnose.explain import explain  # noqa: PLC0415 - needs models

        return explain(task_id)

    def progress_of(self, task_id: Id) -> Progress | None:
        """Return what a task last reported."""
        from queue_app.models import TaskProgress  # noqa: PLC0415 - needs the apps

        found = TaskProgress.objects.filter(pk=parse_id(task_id)).first()
        return None if found is None else Progress(found.fraction, found.message, found.updated_at)

    def row_of(self, task_id: Id) -> Task:
        """Return the row of a task; raise ``TaskNotFound``."""
        from queue_app.models import Task  # noqa: PLC0415 - needs the apps

        found: Task | None = Task.objects.filter(pk=parse_id(task_id)).first()
        if found is None:
            raise TaskNotFound(f"There is no task {task_id}.")
        return found

    def children_of(self, task_id: Id) -> list[QueueTaskResult[..., Any]]:
        """Return the results of the tasks that wait for a task in its workflow."""
        from queue_app.models import TaskDependency  # noqa: PLC0415 - needs the apps

        edges = TaskDependency.objects.filter(before_id=parse_id(task_id)).order_by("after_id")
        return [self.get_result(child) for child in edges.values_list("after_id", flat=True)]


def _refuse_transaction() -> None:
    from queue_app.sql.database import is_in_transaction  # noqa: PLC0415 - imports the driver

    if is_in_transaction():
        raise TransactionManagementError(
            "wait() inside a transaction may wait for ever: no worker sees a task before its transaction commits."
        )


def _pauses(workflow_id: Id, timeout: float | timedelta | None) -> Iterator[float]:
    """Yield the seconds until the next look, at most a second; raise ``TimeoutError`` when the time is over."""
    seconds, began, pause = checked_timeout(timeout), time.monotonic(), 0.05
    while seconds is None or time.monotonic() - began < seconds:
        yield pause if seconds is None else min(pause, max(seconds - time.monotonic() + began, 0.0))
        pause = min(1.0, 1.5 * pause)
    yield 0.0
    raise TimeoutError(f"The workflow {workflow_id} has not ended after {seconds:g} s; its page says why.")


def checked_timeout(given: object) -> float | None:
    """Return a timeout in seconds (``None``: none); raise ``TypeError`` or ``ValueError``."""
    if given is None:
        return None
    seconds = given.total_seconds() if isinstance(given, timedelta) else given
    if isinstance(seconds, bool) or not isinstance(seconds, int | float):
        raise TypeError(f"timeout is a number of seconds, a timedelta or None, not {given!r:.60}.")
    if not seconds >= 0:  # false for NaN too, which would never time out
        raise ValueError(f"timeout must be at least 0 seconds, not {given!r:.60}.")
    return float(seconds)


def _timed_out(task_id: Id, seconds: float | None) -> TimeoutError:
    from queue_app.sql.claim import statuses  # noqa: PLC0415 - imports the driver

    status = statuses([parse_id(task_id)]).get(parse_id(task_id), "gone")
    return TimeoutError(f"The task {task_id} is still {status} after {seconds:g} s; result.explain() says why.")


RESULT_STATUS: Final[dict[Status, TaskResultStatus]] = {
    **dict.fromkeys(WAITING, TaskResultStatus.READY),
    Status.EXECUTING: TaskResultStatus.RUNNING,
    **dict.fromkeys(TERMINAL, TaskResultStatus.FAILED),
    Status.COMPLETED: TaskResultStatus.SUCCESSFUL,
}

# A new result is filled slot by slot, because Django's constructor takes three times as long for each task of a bulk.
_IN_NEW_RESULT: Final = ("task", "id", "status", "enqueued_at", "args", "kwargs", "backend", "errors", "worker_ids")
(
    _put_task, _put_id, _put_status, _put_enqueued_at, _put_args, _put_kwargs, _put_backend, _put_errors,
    _put_worker_ids,
) = (getattr(TaskResult, name).__set__ for name in _IN_NEW_RESULT)  # fmt: skip
_PUT_NOTHING: Final = [
    getattr(TaskResult, field.name).__set__ for field in fields(TaskResult) if field.name not in _IN_NEW_RESULT
]
_SCALARS: Final = frozenset({str, int, float, bool, NoneType})
_django_log = logging.getLogger("django.tasks")


def new_result(
    task: AnyTask, call: tuple[Sequence[Any], dict[str, Any]], stored: Enqueued, text: str, alias: str
) -> AnyResult:
    """Return the result of a new task; ``text`` is its id, ``alias`` its entry in ``TASKS``."""
    args, kwargs = call
    # ``normalize_json`` walks through all values, which scalars do not need.
    plain = _SCALARS.issuperset(map(type, kwargs.values()))
    result: AnyResult = object.__new__(QueueTaskResult)
    for put in _PUT_NOTHING:
        put(result, None)
    _put_task(result, task)
    _put_id(result, text)
    _put_status(result, TaskResultStatus.READY)
    _put_enqueued_at(result, stored.created_at)
    _put_args(result, normalize_json(args) if args else [])
    _put_kwargs(result, dict(kwargs) if plain else normalize_json(kwargs))
    _put_backend(result, alias)
    _put_errors(result, [])
    _put_worker_ids(result, [])
    return result


def has_receivers(signal: Signal, level: int) -> bool:
    """Return whether a task signal must be sent: the project has a receiver for it, or enabled Django's task log.

    Django connects one receiver to each of these signals, which writes to the logger
    ``django.tasks``. That receiver counts if the project gives the logger a level.
    """
    return len(signal.receivers) > 1 or (_django_log.level != logging.NOTSET and _django_log.isEnabledFor(level))


def load_result(task_id: uuid.UUID, alias: str) -> AnyResult | None:
    """Return the result of a stored task, or ``None`` when there is no such task.

    If the function or queue of the task is gone, the result can still be read: its ``task`` then has the name
    of the function, and cannot be enqueued.
    """
    return load_results([task_id], alias).get(task_id)


def load_results(task_ids: Sequence[uuid.UUID], alias: str) -> dict[uuid.UUID, AnyResult]:
    """Return {id: result} of the stored tasks among ``task_ids``, like ``load_result``, in as few queries as one."""
    from queue_app import models  # noqa: PLC0415 - needs the apps

    rows = models.Task.objects.in_bulk(task_ids)
    if not rows:
        return {}
    payloads = models.TaskPayload.objects.in_bulk(rows)
    attempts: dict[uuid.UUID, list[models.TaskAttempt]] = defaultdict(list)
    for attempt in models.TaskAttempt.objects.filter(task_id__in=list(rows)).order_by("task_id", "attempt"):
        attempts[attempt.task_id].append(attempt)
    completed = [row.pk for row in rows.values() if row.status == Status.COMPLETED]
    values = dict(models.TaskResult.objects.filter(pk__in=completed).values_list("pk", "value")) if completed else {}
    workers = {task_id: _workers(row, attempts[task_id]) for task_id, row in rows.items()}
    ids = list({worker_id for each in workers.values() for worker_id in each})
    names = dict(zip(ids, worker_names(ids), strict=True))
    found = {}
    for task_id, row in rows.items():
        result = _loaded(row, payloads.get(task_id), attempts[task_id], alias)
        result.worker_ids.extend(names[worker_id] for worker_id in workers[task_id])
        if result.status is TaskResultStatus.SUCCESSFUL:
            value = codecs.real_result(_readable(values.get(task_id), row.task_type))
            object.__setattr__(result, "_return_value", value)  # as Django's own backends do
        found[task_id] = result
    return found


def _workers(row: Task, attempts: Sequence[TaskAttempt]) -> list[uuid.UUID]:
    workers = [attempt.worker_id for attempt in attempts if attempt.worker_id]
    if row.worker_id is not None and row.attempt not in {attempt.attempt for attempt in attempts}:
        workers.append(row.worker_id)
    return workers


def _loaded(row: Task, payload: TaskPayload | None, attempts: Sequence[TaskAttempt], alias: str) -> AnyResult:
    args, kwargs = ([], {}) if payload is None else (payload.args, payload.parameters)
    with suppress(Undecryptable, EncryptionUnavailable):
        args, kwargs = call_of(row.task_type, args, kwargs)
    return QueueTaskResult(
        task=_restored(row, alias),
        id=str(row.pk),
        status=RESULT_STATUS[Status(row.status)],
        enqueued_at=row.created_at,
        started_at=attempts[0].started_at if attempts else row.started_at,
        finished_at=row.finished_at,
        last_attempted_at=row.started_at,
        args=args,
        kwargs=kwargs,
        backend=alias,
        errors=[_error(attempt.exception_class, attempt.traceback, row.task_type) for attempt in attempts],
        worker_ids=[],
    )


def _readable(value: Any, task_type: str) -> Any:
    """Return a stored JSON value; encrypted as it is stored if this process lacks the key."""
    with suppress(Undecryptable, EncryptionUnavailable):
        return opened_if(value, task_type)
    return value


def earlier_attempts(task_id: uuid.UUID) -> tuple[list[TaskError], list[str]]:
    """Return the errors of the attempts recorded so far, and their workers, in order."""
    from queue_app.models import TaskAttempt  # noqa: PLC0415 - needs the apps

    found = TaskAttempt.objects.filter(task_id=task_id).order_by("attempt")
    rows = list(found.values_list("exception_class", "traceback", "task__task_type", "worker_id"))
    return [_error(*row[:3]) for row in rows], worker_names([row[3] for row in rows if row[3]])


def worker_names(ids: Sequence[uuid.UUID]) -> list[str]:
    """Return the names of workers, as people see them elsewhere; the id of one whose row is gone."""
    from queue_app.models import Worker  # noqa: PLC0415 - needs the apps

    names = dict(Worker.objects.filter(pk__in=ids).values_list("id", "name")) if ids else {}
    return [names.get(worker_id) or str(worker_id) for worker_id in ids]


def _error(exception_class: str, traceback: str, task_type: str) -> TaskError:
    if is_sealed(traceback):
        found = _readable(traceback, task_type)
        traceback = found if is_sealed(found) else json.loads(found)[1]
    return TaskError(exception_class_path=exception_class, traceback=traceback)


def _restored(row: Task, alias: str) -> AnyTask:
    """Return the task of a stored call: the registered one with the options of the row.

    Validates nothing, so a stored call can still be read after its function or queue has changed. A row stores only
    the band: the priority is that of the registered task if it lies in the band, else the band's default number.
    """
    registered = registry.find(row.task_type)
    own: dict[str, Any] = {"func": registry.stand_in(row.task_type), "takes_context": False}
    if registered is not None:
        own = {field.name: getattr(registered, field.name) for field in fields(registered)}
    if registered is None or band_from_django(registered.priority) is not row.band:
        own["priority"] = django_priority(row.band)
    own |= {"queue_name": row.queue, "run_after": row.run_after, "backend": alias}
    for name in OPTIONS:
        value = _plain_option(getattr(row, name))
        if name not in own or _plain_option(own[name]) != value:
            own[name] = value
    retries = own["max_retries"]
    if retries is None or own.get("max_attempts") != retries + 1:
        own["max_attempts"] = None
    restored = object.__new__(QueueTask)
    for field in fields(QueueTask):
        object.__setattr__(restored, field.name, own.get(field.name, field.default))
    return restored


def _plain_option(value: Any) -> Any:
    """Return an option in the form in which a row stores it."""
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, list | tuple | set | frozenset):
        return tuple(sorted(set(value)))
    return value
