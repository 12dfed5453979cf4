"""What executes now, for those who watch."""

from __future__ import annotations

from typing import NamedTuple

from django.db.models import OuterRef, Subquery
from django.utils import timezone

from queue_app.core.states import Status
from queue_app.models import Task, Worker


class Running(NamedTuple):
    """An executing task, who runs it, and for how many seconds."""

    task_type: str
    queue: str
    worker: str
    attempt: int
    seconds: float


def running(limit: int) -> list[Running]:
    """Return at most ``limit`` executing tasks, the longest running first."""
    name = Worker.objects.filter(pk=OuterRef("worker_id")).values("name")[:1]
    found = (
        Task.objects.in_status(Status.EXECUTING)
        .annotate(worker_name=Subquery(name))
        .order_by("started_at")
        .values_list("task_type", "queue", "worker_name", "attempt", "started_at")[:limit]
    )
    now = timezone.now()
    return [
        Running(kind, queue, worker or "?", attempt, max(0.0, (now - started_at).total_seconds()))
        for kind, queue, worker, attempt, started_at in found
    ]
