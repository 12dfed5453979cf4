"""Read tasks: lists, counts, exports, one task in full, and its place in the queue."""

import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from operator import attrgetter
from typing import Any, Final

from django.db.models import F
from django.db.models.functions import Coalesce

from queue_app import conf
from queue_app.core.limits import ARRIVAL
from queue_app.core.priorities import ARRIVAL_BAND, Band, Thresholds, effective_band
from queue_app.core.records import TaskRef
from queue_app.core.states import Status
from queue_app.exceptions import TaskNotFound
from queue_app.index import Index
from queue_app.models import PriorityPolicy, Queue, Signal, StepResult, Task, TaskAttempt, TaskLog, TaskProgress
from queue_app.models.querysets import TaskQuerySet
from queue_app.services.notify.index import notify_index
from queue_app.services.read.task_filter import TaskFilter, has_index, is_one_type, limits_of_ids, matching, parts
from queue_app.sql import search
from queue_app.sql.database import clock
from queue_app.sql.search import has_error

COUNT_CAP: Final = 10_000
EXPORT_PAGE: Final = 1000
#: Number of newest tasks that are searched for a page before all tasks are.
WINDOW: Final = 20_000


@dataclass(frozen=True, slots=True)
class Page:
    """Tasks, newest first; ``before`` is where the next page begins, ``None`` on the last page."""

    tasks: list[Task]
    before: uuid.UUID | None


@dataclass(frozen=True, slots=True, kw_only=True)
class EffectiveOptions:
    """The options of a task's next claim: its own, else its queue's, else those of its band's policy."""

    timeout: float  # of the first try; each retry may take longer
    max_retries: int
    retry_delay: float
    timeout_from: str  # task, queue or policy
    max_retries_from: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskDetail:
    """One task with everything that is stored about it."""

    task: Task
    args: list[Any]
    parameters: dict[str, Any]
    metadata: dict[str, Any] | None
    result: Any
    attempts: list[TaskAttempt]
    progress: TaskProgress | None
    logs: list[TaskLog]
    options: EffectiveOptions
    queue_position: int | None
    steps: list[StepResult]
    signals: list[Signal]

    @property
    def task_id(self) -> uuid.UUID:
        """The id of the task."""
        return self.task.id


def list_tasks(tasks: TaskQuerySet, wanted: TaskFilter, *, page_size: int, before: uuid.UUID | None = None) -> Page:
    """Return one page of ``tasks``; its cost does not depend on how many pages came before."""
    (least, below), (_, begin) = limits_of_ids(wanted), limits_of_ids(wanted, timedelta())
    tasks = _between(tasks, least, _lower(before, below))
    found = _newest(tasks, wanted, page_size + 1, _lower(before, begin))
    more = len(found) > page_size
    found = found[:page_size]
    set_effective_bands(found)
    _set_traces(found)
    return Page(found, found[-1].id if more else None)


def _between(tasks: TaskQuerySet, least: uuid.UUID | None, below: uuid.UUID | None) -> TaskQuerySet:
    """Keep the tasks with ids from ``least`` on and less than ``below``."""
    limits = {"id__gte": least, "id__lt": below}
    return tasks.filter(**{name: limit for name, limit in limits.items() if limit is not None})


def _lower(one: uuid.UUID | None, other: uuid.UUID | None) -> uuid.UUID | None:
    return min(filter(None, (one, other)), default=None)


def _newest(tasks: TaskQuerySet, wanted: TaskFilter, limit: int, before: uuid.UUID | None) -> list[Task]:
    """Return the newest ``tasks`` that match the filter; most have ids below ``before``.

    Scanning tasks from the newest on is fast when many match, but reads all tasks when few or only old ones do.
    PostgreSQL's statistics cannot tell these cases apart. So the scan ends after a window, and the missing tasks are
    found by the filter's own indexes and sorted.
    """
    start = None if has_index(wanted) else _start_of_window(before)
    found = list(matching(wanted, tasks, above=start).order_by("-id")[:limit])
    if start is None or len(found) == limit:
        return found
    missing = limit - len(found)
    # No index has the order of this expression, so PostgreSQL does not scan on; one type's tasks have an index.
    order = F("id").desc() if is_one_type(wanted) else Coalesce("id", "id").desc()
    # Pending tasks are read first: a task that ends meanwhile is then found twice instead of never.
    # Their ids come first, as an index may know all that the filter reads, and sorting ids takes less.
    older = {
        task.id: task
        for part in parts(wanted, tasks.filter(id__lte=start))
        for task in Task.objects.using(part.db).filter(pk__in=part.order_by(order).values("pk")[:missing])
    }
    return found + sorted(older.values(), key=attrgetter("id"), reverse=True)[:missing]


def _start_of_window(before: uuid.UUID | None) -> uuid.UUID | None:
    """Return the first id behind the window of newest tasks; ``None`` when the window holds them all."""
    ids = Task.objects.order_by("-id").values_list("id", flat=True)
    if before is not None:
        ids = ids.filter(id__lt=before)
    return next(iter(ids[WINDOW : WINDOW + 1]), None)


def set_effective_bands(
    tasks: list[Task], thresholds: Thresholds | None = None, by_arrival: frozenset[str] | None = None
) -> None:
    """Set ``effective_priority`` of queued tasks.

    Policies, the names of queues ``by_arrival`` and the database's time are read only if there are any.
    """
    waiting = [(task, task.queued_at) for task in tasks if task.status == Status.QUEUED and task.queued_at is not None]
    if waiting:
        thresholds, at = thresholds or PriorityPolicy.thresholds(), clock()
        by_arrival = Queue.by_arrival() if by_arrival is None else by_arrival
        for task, since in waiting:
            band = ARRIVAL_BAND if task.queue in by_arrival else effective_band(task.band, since, at, thresholds)
            vars(task)["effective_priority"] = band


def _set_traces(tasks: list[Task]) -> None:
    """Set ``sent_trace`` of the tasks whose caller sent a trace."""
    sent = search.traces([task.id for task in tasks])
    for task in tasks:
        if task.id in sent:
            vars(task)["sent_trace"] = sent[task.id]


def export_pages(tasks: TaskQuerySet, wanted: TaskFilter) -> Iterator[list[Task]]:
    """Yield all tasks that match the filter, newest first, in pages.

    Each page is a query of its own that starts after the last id. So memory use does not grow with the number of tasks,
    no snapshot is held, and a pooler does no harm.
    """
    before: uuid.UUID | None = None
    thresholds, by_arrival = PriorityPolicy.thresholds(), Queue.by_arrival()
    while True:
        page = matching(wanted, tasks)
        if before is not None:
            page = page.filter(id__lt=before)
        found = list(page.order_by("-id")[:EXPORT_PAGE])
        if found:
            set_effective_bands(found, thresholds, by_arrival)
            _set_traces(found)
            yield found
        if len(found) < EXPORT_PAGE:
            return
        before = found[-1].id


def count_tasks(tasks: TaskQuerySet, wanted: TaskFilter, *, exact: bool) -> tuple[int, bool]:
    """Return how many tasks match, and whether the count stopped at ``COUNT_CAP``; an ``exact`` one never stops."""
    if exact:
        return matching(wanted, tasks).order_by().count(), False
    if wanted.error is not None and wanted == TaskFilter(error=wanted.error) and not tasks.query.where:
        failed = (
            TaskAttempt.objects.filter(has_error(wanted.error)).values("task_id").distinct()
        )  # gone with their tasks
        count = failed[: COUNT_CAP + 1].count()
        return min(count, COUNT_CAP), count > COUNT_CAP
    count = 0
    for part in parts(wanted, _between(tasks, *limits_of_ids(wanted))):
        count += part.order_by()[: COUNT_CAP + 1 - count].count()
    return min(count, COUNT_CAP), count > COUNT_CAP


def get_task(tasks: TaskQuerySet, task_id: uuid.UUID) -> Task:
    """Return one of ``tasks`` by its id; raise ``TaskNotFound``."""
    task: Task | None = tasks.filter(pk=task_id).first()
    if task is None:
        raise TaskNotFound(f"There is no task {task_id}.")
    return task


def task_detail(task_id: uuid.UUID, *, user: str | None = None) -> TaskDetail:
    """Return a task in full; raise ``TaskNotFound``. With ``user``, only that user's tasks are found."""
    found = search.inspect(task_id, user)
    if found is None:
        raise TaskNotFound(f"There is no task {task_id}.")
    task = found.task
    vars(task)["sent_trace"] = found.trace
    if task.status == Status.QUEUED and task.queued_at is not None:
        thresholds = {Band(band): policy.promote_after_seconds for band, policy in found.policies.items()}
        risen = effective_band(task.band, task.queued_at, found.at, thresholds)
        vars(task)["effective_priority"] = ARRIVAL_BAND if found.queue.order == ARRIVAL else risen
    failed = TaskAttempt.objects.filter(task_id=task.id).order_by("attempt") if found.has_failed else ()
    progress, logs = None, []
    if task.attempt:  # a task that never started has neither
        progress = TaskProgress.objects.filter(task_id=task.id).first()
        logs = list(TaskLog.objects.filter(task_id=task.id).order_by("attempt"))
    return TaskDetail(
        task=task,
        args=found.args,
        parameters=found.parameters,
        metadata=found.metadata,
        result=found.result,
        attempts=list(failed),
        progress=progress,
        logs=logs,
        options=_options(task, found.queue, found.policies.get(task.priority) or PriorityPolicy()),
        queue_position=position_of(task),
        steps=list(StepResult.objects.filter(task_id=task.id).order_by("position")) if found.has_steps else [],
        signals=list(Signal.objects.filter(task_id=task.id).order_by("id")) if found.has_steps else [],
    )


def effective_options(task: Task) -> EffectiveOptions:
    """Return the options that a claim or a failure of the task would use (``sql.claim``)."""
    policy = PriorityPolicy.objects.filter(pk=task.priority).first() or PriorityPolicy()
    queue = Queue.objects.filter(pk=task.queue).first() or Queue()
    return _options(task, queue, policy)


def _options(
    task: Task, queue: Queue | search.QueueOptions, policy: PriorityPolicy | search.BandPolicy
) -> EffectiveOptions:
    timeout, timeout_from = _first_set(task.timeout, queue.timeout_seconds, policy.timeout_seconds)
    max_retries, max_retries_from = _first_set(task.max_retries, queue.max_retries, policy.max_retries)
    return EffectiveOptions(
        timeout=timeout,
        max_retries=int(max_retries),
        retry_delay=conf.get().retry.base_seconds if task.retry_delay is None else task.retry_delay,
        timeout_from=timeout_from,
        max_retries_from=max_retries_from,
    )


def _first_set(own: float | None, of_queue: float | None, of_policy: float) -> tuple[float, str]:
    """Return the value that applies, and where it comes from."""
    if own is not None:
        return own, "task"
    return (of_policy, "policy") if of_queue is None else (of_queue, "queue")


def position_of(task: Task) -> int | None:
    """Return a queued task's place in its queue by time, 1 for the next; ``None`` for other tasks."""
    if task.status != Status.QUEUED or task.queued_at is None:
        return None
    return queue_position(TaskRef.of(task))


def queue_position(ref: TaskRef) -> int | None:
    """Return a task's place in its queue; ``None`` when the index lacks the task or cannot be reached."""
    return notify_index(Index.position, "position", ref)
