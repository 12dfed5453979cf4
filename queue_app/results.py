"""Make the ``TaskResult`` that callers and signals of ``django.tasks`` see, of a new task or of a stored one.

A decorator imports this module by way of the backend, perhaps while the apps are still loading, so
functions import models when they need them.
"""

from __future__ import annotations

import json
import logging
import uuid
from collections import defaultdict
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import fields
from datetime import timedelta
from types import NoneType
from typing import TYPE_CHECKING, Any, Final

from django.dispatch import Signal
from django.tasks.base import TaskError, TaskResult, TaskResultStatus
from django.utils.json import normalize_json

from queue_app import codecs, registry
from queue_app.core.options import OPTIONS
from queue_app.core.priorities import band_from_django, django_priority
from queue_app.core.records import Enqueued
from queue_app.core.redaction import is_sealed
from queue_app.core.states import TERMINAL, WAITING, Status
from queue_app.encryption import call_of, opened_if
from queue_app.exceptions import EncryptionUnavailable, Undecryptable
from queue_app.registry import AnyTask
from queue_app.task_result import QueueTaskResult
from queue_app.tasks import AnyResult, QueueTask

if TYPE_CHECKING:
    from queue_app.models import Task, TaskAttempt, TaskPayload

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
