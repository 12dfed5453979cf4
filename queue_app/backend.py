"""The ``django.tasks`` backend and its Task class.

``TASKS = {"default": {"BACKEND": "queue_app.backend.TaskQueueBackend"}}`` makes Django's
own ``@task`` and ``.enqueue()`` store tasks in this queue, in the caller's transaction.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import TYPE_CHECKING, Any, Self, cast

from django.core import checks as django_checks
from django.dispatch import Signal
from django.tasks.backends.base import BaseTaskBackend
from django.tasks.base import Task, TaskResult, TaskResultStatus
from django.tasks.exceptions import TaskResultDoesNotExist
from django.tasks.signals import task_enqueued

from queue_app import registry
from queue_app.core.priorities import band_from_django
from queue_app.core.records import Enqueued, NewTask
from queue_app.core.states import Status
from queue_app.registry import AnyTask
from queue_app.services.enqueue import enqueue, enqueue_calls
from queue_app.services.results import load_result

_django_log = logging.getLogger("django.tasks")

type AnyResult = TaskResult[..., Any]  # generic in the stubs only; an alias is not evaluated

if TYPE_CHECKING:
    _Task = Task[..., Any]
else:
    _Task = Task

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


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueTask(_Task):
    """A task function with the options of this queue.

    Set them in the decorator (Django 6.1 on) or with ``.using(...)``:

    - ``capabilities``: names that a worker must offer to run it;
    - ``timeout``: seconds until an attempt is overdue; ``None``: by the band's policy;
    - ``max_retries``: retries after the first attempt; ``None``: by the band's policy;
    - ``retry_delay``: seconds before the first retry, doubled for each further one;
    - ``idempotency_key``: of the same key and user only one task is stored;
    - ``user``: on whose behalf it runs.
    """

    capabilities: Sequence[str] = ()
    timeout: float | None = None
    max_retries: int | None = None
    retry_delay: float | None = None
    idempotency_key: str | None = None
    user: str = ""

    def __post_init__(self) -> None:
        Task.__post_init__(self)
        registry.register(self)

    def using(
        self,
        *,
        priority: int | None = None,
        queue_name: str | None = None,
        run_after: datetime | None = None,
        backend: str | None = None,
        **options: Any,
    ) -> Self:
        """Return a copy with other defaults; raise ``TypeError`` for an unknown option."""
        changed = cast(
            "Self", Task.using(self, priority=priority, queue_name=queue_name, run_after=run_after, backend=backend)
        )
        return replace(changed, **options) if options else changed


class TaskQueueBackend(BaseTaskBackend):
    """Store tasks as rows, from which the workers of this queue take them."""

    task_class = QueueTask
    supports_defer = True
    supports_async_task = True
    supports_get_result = True
    supports_priority = True

    def enqueue(  # type: ignore[override] # the stubs tie the result to the parameters of the function
        self, task: AnyTask, args: Sequence[Any], kwargs: dict[str, Any]
    ) -> AnyResult:
        """Store one task in the caller's transaction and return its result, not yet finished.

        Raises ``InvalidTask`` for a task that this backend cannot take, ``InvalidTaskData``
        for parameters that must not be stored, ``IdempotencyConflict`` for a reused key.
        """
        self.validate_task(task)
        result = self._result(task, args, kwargs, enqueue(_new_task(task, args, kwargs)))
        if has_audience(task_enqueued, logging.DEBUG):
            task_enqueued.send(type(self), task_result=result)
        return result

    def enqueue_many(self, task: AnyTask, calls: Iterable[tuple[Sequence[Any], dict[str, Any]]]) -> list[AnyResult]:
        """Store one task for each (args, kwargs), all or nothing; return the results in order.

        One COPY and one push, in the caller's transaction. Raises as ``enqueue`` does.
        """
        self.validate_task(task)
        calls = list(calls)
        stored = enqueue_calls(_new_task(task), calls)
        results = [
            self._result(task, args, kwargs, enqueued) for (args, kwargs), enqueued in zip(calls, stored, strict=True)
        ]
        if has_audience(task_enqueued, logging.DEBUG):
            for result in results:
                task_enqueued.send(type(self), task_result=result)
        return results

    def _result(self, task: AnyTask, args: Sequence[Any], kwargs: dict[str, Any], enqueued: Enqueued) -> AnyResult:
        if not enqueued.created:  # a replayed idempotency key: what became of the first one
            return self.get_result(str(enqueued.id))
        return TaskResult(
            task=task,
            id=str(enqueued.id),
            status=TaskResultStatus.READY,
            enqueued_at=enqueued.enqueued_at,
            started_at=None,
            finished_at=None,
            last_attempted_at=None,
            args=list(args),
            kwargs=kwargs,
            backend=self.alias,
            errors=[],
            worker_ids=[],
        )

    def get_result(self, result_id: str) -> AnyResult:
        """Return what is known of a task; raise ``TaskResultDoesNotExist`` for an unknown id."""
        try:
            task_id = uuid.UUID(result_id)
        except (ValueError, AttributeError, TypeError) as error:
            raise TaskResultDoesNotExist(result_id) from error
        found = load_result(task_id)
        if found is None:
            raise TaskResultDoesNotExist(result_id)
        status = RESULT_STATUS[found.status]
        result: AnyResult = TaskResult(
            task=registry.get(found.task_type),
            id=str(task_id),
            status=status,
            enqueued_at=found.created_at,
            started_at=found.first_started_at,
            finished_at=found.finished_at,
            last_attempted_at=found.started_at,
            args=found.args,
            kwargs=found.parameters,
            backend=self.alias,
            errors=found.errors,
            worker_ids=found.worker_ids,
        )
        if status is TaskResultStatus.SUCCESSFUL:
            object.__setattr__(result, "_return_value", found.value)  # as Django's own backends do
        return result

    def check(self, **kwargs: Any) -> list[django_checks.CheckMessage]:
        """Return what is wrong with this entry of ``TASKS``."""
        problems: list[django_checks.CheckMessage] = list(super().check(**kwargs))
        if self.options:
            problems.append(
                django_checks.Error(
                    f"The task queue has no OPTIONS ({', '.join(sorted(map(str, self.options)))}).",
                    hint="Settings of the queue belong into TASKQUEUE.",
                    obj=f"TASKS[{self.alias!r}]",
                    id="queue_app.E005",
                )
            )
        return problems


def has_audience(signal: Signal, level: int) -> bool:
    """Whether anybody but Django's own log listens to a signal of tasks, or that log was asked for.

    Django connects one receiver of its own to each, which writes to the logger
    ``django.tasks``. It counts once the project gives that logger a level.
    """
    return len(signal.receivers) > 1 or (_django_log.level != logging.NOTSET and _django_log.isEnabledFor(level))


def _new_task(task: AnyTask, args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None) -> NewTask:
    options = task if isinstance(task, QueueTask) else None
    return NewTask(
        task_type=registry.type_of(task),
        args=list(args),
        parameters={} if kwargs is None else kwargs,
        queue=task.queue_name,
        priority=band_from_django(task.priority),
        run_after=task.run_after,
        capabilities=tuple(options.capabilities) if options else (),
        timeout=options.timeout if options else None,
        max_retries=options.max_retries if options else None,
        retry_delay=options.retry_delay if options else None,
        idempotency_key=options.idempotency_key if options else None,
        user=options.user if options else "",
    )
