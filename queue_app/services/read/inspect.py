"""Answer what there is to know about tasks: lists, one task in full, and its place in the queue."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, Final

from django.db.models import F
from django.db.models.functions import Coalesce

from queue_app import conf
from queue_app.core.priorities import Band
from queue_app.core.promotion import Thresholds, effective_band
from queue_app.core.records import TaskRef
from queue_app.core.states import Status
from queue_app.exceptions import TaskNotFound
from queue_app.models import PriorityPolicy, Queue, Task, TaskAttempt, TaskLog, TaskProgress
from queue_app.models.querysets import TaskQuerySet
from queue_app.services.notify.index import notify_index
from queue_app.services.read.task_filter import TaskFilter, has_index, is_one_type, matching, parts
from queue_app.sql import inspection as rows
from queue_app.sql.database import clock

COUNT_CAP: Final = 10_000
EXPORT_PAGE: Final = 1000
#: A page is looked for among so many of the newest tasks before it is among all.
WINDOW: Final = 20_000


@dataclass(frozen=True, slots=True)
class Page:
    """Tasks, newest first; ``before`` is where the next page begins, ``None`` on the last one."""

    tasks: list[Task]
    before: uuid.UUID | None


@dataclass(frozen=True, slots=True, kw_only=True)
class EffectiveOptions:
    """What holds for a task's next claim: its own options, else its queue's, else the policy of its band."""

    timeout: float  # of the first try; each retry may take longer
    max_retries: int
    retry_delay: float
    timeout_from: str  # task, queue or policy
    max_retries_from: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskDetail:
    """One task with everything that is stored beside its row."""

    task: Task
    args: list[Any]
    parameters: dict[str, Any]
    result: Any
    attempts: list[TaskAttempt]
    progress: TaskProgress | None
    logs: list[TaskLog]
    options: EffectiveOptions
    queue_position: int | None


def list_tasks(tasks: TaskQuerySet, wanted: TaskFilter, *, page_size: int, before: uuid.UUID | None = None) -> Page:
    """Return one page of ``tasks``; its cost does not depend on how many pages came before."""
    if before is not None:
        tasks = tasks.filter(id__lt=before)
    found = _newest(tasks, wanted, page_size + 1, before)
    more = len(found) > page_size
    found = found[:page_size]
    _note_effective_bands(found)
    return Page(found, found[-1].id if more else None)


def _newest(tasks: TaskQuerySet, wanted: TaskFilter, limit: int, before: uuid.UUID | None) -> list[Task]:
    """Return the newest of ``tasks`` that a filter means.

    To walk through all tasks from the newest on is quick where many match, and reads them
    all where few do, or only old ones. Which it is the statistics of PostgreSQL cannot tell,
    and it often walks in vain. So a walk ends after a window, and what is missing then is
    gathered by whatever way finds all that match, and sorted.
    """
    start = None if has_index(wanted) else _start_of_window(before)
    found = list(matching(wanted, tasks, above=start).order_by("-id")[:limit])
    if start is None or len(found) == limit:
        return found
    missing = limit - len(found)
    # An expression that no index is in the order of, else PostgreSQL would go on walking; one type's tasks have one.
    order = F("id").desc() if is_one_type(wanted) else Coalesce("id", "id").desc()
    # What waits is read first: what ends meanwhile is found twice, not never.
    older = {
        task.id: task for part in parts(wanted, tasks.filter(id__lte=start)) for task in part.order_by(order)[:missing]
    }
    return found + sorted(older.values(), key=attrgetter("id"), reverse=True)[:missing]


def _start_of_window(before: uuid.UUID | None) -> uuid.UUID | None:
    """Return the id behind the window of newest tasks; ``None`` when they all lie within it."""
    ids = Task.objects.order_by("-id").values_list("id", flat=True)
    if before is not None:
        ids = ids.filter(id__lt=before)
    return next(iter(ids[WINDOW : WINDOW + 1]), None)


def _note_effective_bands(tasks: list[Task], thresholds: Thresholds | None = None) -> None:
    """Note the bands that promotion gives tasks by now; asks for policies and time only where some task waits."""
    waiting = [(task, task.queued_at) for task in tasks if task.status == Status.QUEUED and task.queued_at is not None]
    if waiting:
        thresholds, at = thresholds or PriorityPolicy.thresholds(), clock()
        for task, since in waiting:
            vars(task)["effective_priority"] = effective_band(task.band, since, at, thresholds)


def export_pages(tasks: TaskQuerySet, wanted: TaskFilter) -> Iterator[list[Task]]:
    """Yield all of the tasks that a filter means, newest first, in pages.

    Each page is a query of its own that goes on after the last id: memory stays the same
    however many there are, here and in the database, no snapshot is held, and a pooler may
    lie between.
    """
    before: uuid.UUID | None = None
    thresholds = PriorityPolicy.thresholds()
    while True:
        page = matching(wanted, tasks)
        if before is not None:
            page = page.filter(id__lt=before)
        found = list(page.order_by("-id")[:EXPORT_PAGE])
        if found:
            _note_effective_bands(found, thresholds)
            yield found
        if len(found) < EXPORT_PAGE:
            return
        before = found[-1].id


def count_tasks(tasks: TaskQuerySet, wanted: TaskFilter, *, exact: bool) -> tuple[int, bool]:
    """Return how many tasks a filter means, and whether there are more than ``COUNT_CAP``, where it stops.

    Unless it is to be ``exact``, which takes as long as there are rows.
    """
    if exact:
        return matching(wanted, tasks).order_by().count(), False
    count = 0
    for part in parts(wanted, tasks):
        count += part.order_by()[: COUNT_CAP + 1 - count].count()
    return min(count, COUNT_CAP), count > COUNT_CAP


def get_task(tasks: TaskQuerySet, task_id: uuid.UUID) -> Task:
    """Return one of ``tasks``; raise ``TaskNotFound`` when it is not among them."""
    task: Task | None = tasks.filter(pk=task_id).first()
    if task is None:
        raise TaskNotFound(f"There is no task {task_id}.")
    return task


def task_detail(task_id: uuid.UUID, *, user: str | None = None) -> TaskDetail:
    """Return all there is about a task (of the user, where one is named); raise ``TaskNotFound``."""
    found = rows.inspect(task_id, user)
    if found is None:
        raise TaskNotFound(f"There is no task {task_id}.")
    task = found.task
    if task.status == Status.QUEUED and task.queued_at is not None:
        thresholds = {Band(band): policy.promote_after_seconds for band, policy in found.policies.items()}
        vars(task)["effective_priority"] = effective_band(task.band, task.queued_at, found.at, thresholds)
    failed = TaskAttempt.objects.filter(task_id=task.id).order_by("attempt") if found.has_failed else ()
    return TaskDetail(
        task=task,
        args=found.args,
        parameters=found.parameters,
        result=found.result,
        attempts=list(failed),
        progress=progress_of(task.id) if task.attempt else None,  # of what never started there is neither
        logs=logs_of(task.id) if task.attempt else [],
        options=_options(task, found.queue, found.policies.get(task.priority) or PriorityPolicy()),
        queue_position=position_of(task),
    )


def effective_options(task: Task) -> EffectiveOptions:
    """Return the options that a claim and a failure of the task would apply (``sql.claim``)."""
    policy = PriorityPolicy.objects.filter(pk=task.priority).first() or PriorityPolicy()
    queue = Queue.objects.filter(pk=task.queue).first() or Queue()
    return _options(task, queue, policy)


def _options(
    task: Task, queue: Queue | rows.QueueOptions, policy: PriorityPolicy | rows.BandPolicy
) -> EffectiveOptions:
    return EffectiveOptions(
        timeout=_first(task.timeout, queue.timeout_seconds, policy.timeout_seconds),
        max_retries=int(_first(task.max_retries, queue.max_retries, policy.max_retries)),
        retry_delay=_first(task.retry_delay, conf.get().retry.base_seconds),
        timeout_from=_source(task.timeout, queue.timeout_seconds),
        max_retries_from=_source(task.max_retries, queue.max_retries),
    )


def _first(*values: float | None) -> float:
    """Return the first value that is set: the last one always is."""
    return next(value for value in values if value is not None)


def _source(own: float | None, of_queue: float | None) -> str:
    return "task" if own is not None else "queue" if of_queue is not None else "policy"


def position_of(task: Task) -> int | None:
    """Return its place in its queue, 1 for the next; ``None`` unless it is queued. Where turns are taken: by time."""
    if task.status != Status.QUEUED or task.queued_at is None:
        return None
    return queue_position(
        TaskRef(
            task.id,
            task.task_type,
            task.queue,
            task.priority,
            tuple(task.capabilities),
            task.queued_at,
            task.user,
            task.concurrency_key,
            task.weight,
        )
    )


def queue_position(ref: TaskRef) -> int | None:
    """Return a task's place in its queue; ``None`` when it is not indexed or the index cannot be reached."""
    found: list[int | None] = []
    notify_index(lambda index: found.append(index.position(ref)), "position")
    return found[0] if found else None


def progress_of(task_id: uuid.UUID) -> TaskProgress | None:
    """Return how far the task is, as far as it has said."""
    return TaskProgress.objects.filter(task_id=task_id).first()


def logs_of(task_id: uuid.UUID) -> list[TaskLog]:
    """Return what the task's attempts logged, the first attempt first."""
    return list(TaskLog.objects.filter(task_id=task_id).order_by("attempt"))
