"""Enqueues the demo's tasks and follows them to their ends."""

from __future__ import annotations  # Task is generic in its stubs only

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast
from uuid import UUID

from django.db import transaction
from django.tasks import Task, default_task_backend

from queue_app.models import Task as TaskRow

from . import tasks
from .folder import Folder
from .models import DemoRun, DocumentIndex

if TYPE_CHECKING:
    from queue_app.backend import TaskQueueBackend

POLL_SECONDS = 0.2
#: Sizes in bytes up to which counting the words of a file is urgent, or ordinary.
SMALL, MEDIUM = 4 * 1024, 64 * 1024


@dataclass
class Group:
    """Tasks of one kind and band, with what shall become of them."""

    name: str
    ids: list[UUID]
    expected: str = "completed"
    open: set[UUID] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.open = set(self.ids) if self.expected != "queued" else set()


@dataclass
class Workload:
    """Everything that one run of the demo has enqueued."""

    run: DemoRun
    groups: list[Group]
    started: float = field(default_factory=time.monotonic)
    seconds: float = 0.0

    @property
    def total(self) -> int:
        """How many tasks are expected to end, with the roll-up that the last of them enqueues."""
        return sum(len(group.ids) for group in self.groups if group.expected != "queued") + (
            0 if self.group(tasks.roll_up.name) else 1
        )

    @property
    def open(self) -> int:
        """How many of them have not ended."""
        return sum(len(group.open) for group in self.groups) + (0 if self.group(tasks.roll_up.name) else 1)

    def group(self, name: str) -> Group | None:
        """Return the group of that name."""
        return next((group for group in self.groups if group.name == name), None)


def enqueue(folder: Folder) -> Workload:
    """Store the run, its documents and all of its tasks in one transaction: either everything is there, or nothing."""
    with transaction.atomic():
        run = DemoRun.objects.create(folder=str(folder.root), skipped=dict(folder.skipped))
        documents = DocumentIndex.objects.bulk_create(
            DocumentIndex(run=run, path=path, size=size) for path, size in folder.files
        )
        groups = [
            Group("flaky", [_one(tasks.flaky)]),
            Group("broken", [_one(tasks.broken)], expected="dead_letter"),
            Group("needs_gpu", [_one(tasks.needs_gpu, run.pk)], expected="queued"),
        ]
        for priority, chosen in _by_urgency(documents).items():
            if chosen:
                groups.append(_many("count_words", tasks.count_words.using(priority=priority), chosen))
        groups.append(_many("compute_digest", tasks.compute_digest, documents[::2]))
        groups.append(_many("compute_digest", tasks.compute_digest.using(priority=tasks.BACKGROUND), documents[1::2]))
    return Workload(run, [group for group in groups if group.ids])


def follow(workload: Workload, *, timeout: float, report: Callable[[Workload], None]) -> bool:
    """Watch the rows until every task has ended; return whether they did within `timeout` seconds."""
    deadline = workload.started + timeout
    while True:
        _look(workload)
        workload.seconds = time.monotonic() - workload.started
        report(workload)
        if not any(group.open for group in workload.groups):
            # The last task of the files enqueues the roll-up before it ends: one that is missing now will never come.
            return workload.open == 0
        if time.monotonic() > deadline:
            return False
        time.sleep(POLL_SECONDS)


def outcomes(group: Group) -> Counter[str]:
    """Count a group's tasks by status."""
    return Counter(TaskRow.objects.filter(pk__in=group.ids).values_list("status", flat=True))


def _look(workload: Workload) -> None:
    """Strike off what has ended, and take up the roll-up once it exists."""
    for group in workload.groups:
        if group.open:
            ended = TaskRow.objects.filter(pk__in=group.open, finished_at__isnull=False)
            group.open.difference_update(ended.values_list("pk", flat=True))
    if workload.group(tasks.roll_up.name) is None:
        row = TaskRow.objects.filter(idempotency_key=tasks.roll_up_key(workload.run.pk)).first()
        if row is not None:
            workload.groups.append(Group(tasks.roll_up.name, [row.pk]))


def _by_urgency(documents: list[DocumentIndex]) -> dict[int, list[DocumentIndex]]:
    """Sort documents into bands: small files first, large ones last."""
    bands: dict[int, list[DocumentIndex]] = {tasks.CRITICAL: [], tasks.HIGH: [], tasks.NORMAL: []}
    for document in documents:
        if document.size <= SMALL:
            bands[tasks.CRITICAL].append(document)
        elif document.size <= MEDIUM:
            bands[tasks.HIGH].append(document)
        else:
            bands[tasks.NORMAL].append(document)
    return bands


def _one(task: Task[Any, Any], *args: object) -> UUID:
    return UUID(task.enqueue(*args).id)


def _many(name: str, task: Task[Any, Any], documents: list[DocumentIndex]) -> Group:
    backend = cast("TaskQueueBackend", default_task_backend)
    results = backend.enqueue_many(task, [((document.pk,), {}) for document in documents])
    return Group(name, [UUID(result.id) for result in results])
