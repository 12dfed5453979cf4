"""Enqueue the demo's tasks and wait for their ends."""

from __future__ import annotations  # Task is generic in its stubs only

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast
from uuid import UUID

from django.db import transaction
from django.tasks import Task, default_task_backend

from queue_app.models import Task as TaskRow

from . import orders, tasks
from .folder import Folder
from .models import DemoRun, DocumentIndex

if TYPE_CHECKING:
    from queue_app.backend import TaskQueueBackend

POLL_SECONDS = 0.2
#: Expected states of tasks that wait for something that the demo does not have.
WAITING = ("queued", "blocked")
#: Maximum size in bytes of a file whose words are counted with priority critical, or high.
SMALL, MEDIUM = 4 * 1024, 64 * 1024


@dataclass
class DemoTasks:
    """Tasks of one type and band, and their expected outcome."""

    name: str
    ids: list[UUID]
    expected: str = "completed"

    def rows(self) -> list[TaskRow]:
        return list(TaskRow.objects.filter(pk__in=self.ids))


@dataclass
class Workload:
    """All tasks of one run of the demo."""

    run: DemoRun
    groups: list[DemoTasks]
    flows: list[orders.Flow]
    started: float = field(default_factory=time.monotonic)
    seconds: float = 0.0

    def __post_init__(self) -> None:
        #: Tasks that should end and have not.
        self.unended = {pk for group in self.groups if group.expected not in WAITING for pk in group.ids}
        #: Number of these, of the roll-up that the last of them enqueues, and of workflows.
        self.total = len(self.unended) + 1 + len(self.flows)

    @property
    def open(self) -> int:
        """Number of these that have not come to their expected end."""
        return len(self.unended) + (self.group(tasks.roll_up.name) is None) + self.open_flows

    @property
    def open_flows(self) -> int:
        """Number of workflows that continue."""
        return sum(flow.standing != flow.expected for flow in self.flows)

    def group(self, name: str) -> DemoTasks | None:
        """Return the first group with this name."""
        return next((group for group in self.groups if group.name == name), None)


def enqueue(folder: Folder) -> Workload:
    """Store the run, its documents and its tasks in one transaction."""
    with transaction.atomic():
        run = DemoRun.objects.create(folder=str(folder.root), skipped=dict(folder.skipped))
        documents = DocumentIndex.objects.bulk_create(
            DocumentIndex(run=run, path=path, size=size) for path, size in folder.files
        )
        groups = [
            DemoTasks("flaky", [_one(tasks.flaky)]),
            DemoTasks("broken", [_one(tasks.broken)], expected="dead_letter"),
            DemoTasks("needs_gpu", [_one(tasks.needs_gpu, run.pk)], expected="queued"),
            DemoTasks("publish", [_one(tasks.publish, run.pk)], expected="blocked"),
        ]
        for priority, chosen in _by_urgency(documents).items():
            if chosen:
                groups.append(_many("count_words", tasks.count_words.using(priority=priority), chosen))
        groups.append(_many("compute_digest", tasks.compute_digest, documents[::2]))
        groups.append(_many("compute_digest", tasks.compute_digest.using(priority=tasks.BACKGROUND), documents[1::2]))
        flows = orders.enqueue_orders()
    return Workload(run, [group for group in groups if group.ids], flows)


def follow(workload: Workload, *, timeout: float, report: Callable[[Workload], None]) -> bool:
    """Poll the rows until every task has ended; return false after `timeout` seconds."""
    deadline = workload.started + timeout
    while True:
        _poll(workload)
        workload.seconds = time.monotonic() - workload.started
        report(workload)
        if not workload.unended and not workload.open_flows:
            # The last file's task enqueues the roll-up before it ends: a roll-up that is missing now never comes.
            return workload.open == 0
        if time.monotonic() > deadline:
            return False
        time.sleep(POLL_SECONDS)


def _poll(workload: Workload) -> None:
    """Remove the tasks that have ended; add the roll-up once it exists."""
    ended = TaskRow.objects.filter(pk__in=workload.unended, finished_at__isnull=False)
    workload.unended.difference_update(ended.values_list("pk", flat=True))
    if workload.group(tasks.roll_up.name) is None:
        row = TaskRow.objects.filter(idempotency_key=tasks.roll_up_key(workload.run.pk)).first()
        if row is not None:
            workload.groups.append(DemoTasks(tasks.roll_up.name, [row.pk]))
            workload.unended.add(row.pk)


def _by_urgency(documents: list[DocumentIndex]) -> dict[int, list[DocumentIndex]]:
    """Return the documents by priority: small files first, large ones last."""
    bands: dict[int, list[DocumentIndex]] = {tasks.CRITICAL: [], tasks.HIGH: [], tasks.NORMAL: []}
    for document in documents:
        is_small, is_medium = document.size <= SMALL, document.size <= MEDIUM
        bands[tasks.CRITICAL if is_small else tasks.HIGH if is_medium else tasks.NORMAL].append(document)
    return bands


def _one(task: Task[Any, Any], *args: object) -> UUID:
    return UUID(task.enqueue(*args).id)


def _many(name: str, task: Task[Any, Any], documents: list[DocumentIndex]) -> DemoTasks:
    backend = cast("TaskQueueBackend", default_task_backend)
    results = backend.enqueue_many(task, [((document.pk,), {}) for document in documents])
    return DemoTasks(name, [UUID(result.id) for result in results])
