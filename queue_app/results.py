"""How a stored task is shown to callers of ``django.tasks``: as a ``TaskResult``, new or read again.

A decorator imports this module by way of the backend, maybe while the apps are still loading:
nothing here touches models.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from datetime import timedelta
from types import NoneType
from typing import TYPE_CHECKING, Any, Final

from django.tasks.base import TaskResult, TaskResultStatus
from django.utils.json import normalize_json

from queue_app import registry
from queue_app.core.priorities import band_from_django, django_priority
from queue_app.core.records import Enqueued
from queue_app.core.states import Status
from queue_app.registry import AnyTask
from queue_app.tasks import AnyResult, QueueTask

if TYPE_CHECKING:
    from queue_app.services.read.results import StoredResult

RESULT_STATUS: dict[Status, TaskResultStatus] = {
    Status.SCHEDULED: TaskResultStatus.READY,
    Status.QUEUED: TaskResultStatus.READY,
    Status.EXECUTING: TaskResultStatus.RUNNING,
    Status.COMPLETED: TaskResultStatus.SUCCESSFUL,
    Status.FAILED: TaskResultStatus.FAILED,
    Status.CANCELLED: TaskResultStatus.FAILED,
    Status.DEAD_LETTER: TaskResultStatus.FAILED,
    Status.EXPIRED: TaskResultStatus.FAILED,
}

# A new result is made of its slots: Django's constructor takes three times as long, for each task of a bulk.
_IN_NEW_RESULT: Final = ("task", "id", "status", "enqueued_at", "args", "kwargs", "backend", "errors", "worker_ids")
(
    _put_task, _put_id, _put_status, _put_enqueued_at, _put_args, _put_kwargs, _put_backend, _put_errors,
    _put_worker_ids,
) = (getattr(TaskResult, name).__set__ for name in _IN_NEW_RESULT)  # fmt: skip
_PUT_NOTHING: Final = [
    getattr(TaskResult, field.name).__set__ for field in fields(TaskResult) if field.name not in _IN_NEW_RESULT
]
_SCALARS: Final = frozenset({str, int, float, bool, NoneType})


def new_result(
    task: AnyTask, call: tuple[Sequence[Any], dict[str, Any]], stored: Enqueued, text: str, alias: str
) -> AnyResult:
    """Return the result of a call that has just been stored; ``text`` is its id, ``alias`` its entry of ``TASKS``."""
    args, kwargs = call
    # Django walks through all values again; it is spared what was found plain when it was stored.
    plain = _SCALARS.issuperset(map(type, kwargs.values()))
    result: AnyResult = object.__new__(TaskResult)
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


def stored_result(found: StoredResult, alias: str) -> AnyResult:
    """Return what is known of a stored task.

    A task whose function or queue is gone can be shown as well: its ``task`` then bears the
    name of the function, and cannot be enqueued.
    """
    status = RESULT_STATUS[found.status]
    result: AnyResult = TaskResult(
        task=_restored(found, alias),
        id=str(found.id),
        status=status,
        enqueued_at=found.created_at,
        started_at=found.first_started_at,
        finished_at=found.finished_at,
        last_attempted_at=found.started_at,
        args=found.args,
        kwargs=found.parameters,
        backend=alias,
        errors=found.errors,
        worker_ids=found.worker_ids,
    )
    if status is TaskResultStatus.SUCCESSFUL:
        object.__setattr__(result, "_return_value", found.value)  # as Django's own backends do
    return result


def _restored(found: StoredResult, alias: str) -> AnyTask:
    """Return the task of a stored call: the registered one with the options of the row.

    Nothing is validated, so that what was stored can be read whatever has changed since. A row
    knows bands: the number of the priority is the registered one while it lies in the row's
    band, else the one that stands for the band.
    """
    registered = registry.find(found.task_type)
    own: dict[str, Any] = {}
    if registered is None:
        own = {"func": registry.stand_in(found.task_type), "takes_context": False}
    else:
        own = {field.name: getattr(registered, field.name) for field in fields(registered)}
    if registered is None or band_from_django(registered.priority) is not found.band:
        own["priority"] = django_priority(found.band)
    own |= {"queue_name": found.queue, "run_after": found.run_after, "backend": alias}
    for name, value in found.options.items():
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
    """Return an option as a row holds it."""
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, list | tuple | set | frozenset):
        return tuple(sorted(set(value)))
    return value
