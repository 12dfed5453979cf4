"""Numbers about queues and workers, counted by the index where it can."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from django.db.models import Count, OuterRef, Subquery, Sum
from django.utils import timezone

from queue_app.core.priorities import Band
from queue_app.core.states import PENDING, Status
from queue_app.exceptions import IndexUnavailable
from queue_app.index import get_index
from queue_app.models import Queue, RuntimeSettings, Task, Worker
from queue_app.models.worker import WorkerStatus


@dataclass(frozen=True, slots=True)
class BandStats:
    """Queued tasks of one effective band, and the age of the oldest in seconds."""

    depth: int
    oldest_seconds: float | None


@dataclass(frozen=True, slots=True)
class QueueSummary:
    """One queue now."""

    name: str
    paused: bool
    max_concurrent: int | None
    active: int
    bands: dict[Band, BandStats]

    @property
    def depth(self) -> int:
        """All queued tasks."""
        return sum(band.depth for band in self.bands.values())


def queue_summary(queue: Queue) -> QueueSummary:
    """Return what waits and runs in a queue. Raises ``IndexUnavailable``."""
    depth = get_index().depth(queue.name)
    now = timezone.now()
    bands = {band: BandStats(depth.counts[band], _age(depth.oldest.get(band), now)) for band in Band}
    return QueueSummary(queue.name, queue.paused, queue.max_concurrent, depth.active, bands)


def _age(since: datetime | None, now: datetime) -> float | None:
    return None if since is None else max(0.0, round((now - since).total_seconds(), 3))


def queue_stats() -> dict[str, Any]:
    """Return depth and oldest age per band, workers, and the throughput of the last minute.

    The depths are ``None`` while the index cannot be reached.
    """
    queues: list[QueueSummary] | None
    try:
        queues = [queue_summary(queue) for queue in Queue.objects.all()]
        state = get_index().generation().state
    except IndexUnavailable:
        queues, state = None, "unreachable"
    return {
        "index": state,
        "depth": None if queues is None else sum(queue.depth for queue in queues),
        "active": Task.objects.in_status(Status.EXECUTING).count(),
        "bands": None if queues is None else _over_queues(queues),
        "queues": None if queues is None else [_as_dict(queue) for queue in queues],
        "workers": worker_counts(),
        "throughput": throughput(timedelta(minutes=1)),
    }


def one_queue_stats(queue: Queue) -> dict[str, Any]:
    """Return what waits and runs in one queue. Raises ``IndexUnavailable``."""
    return _as_dict(queue_summary(queue))


def admin_queue() -> dict[str, Any]:
    """Return depth, active tasks, the cap over everything, and the depth by effective band."""
    found = queue_stats()
    cap = RuntimeSettings.objects.values_list("max_concurrent", flat=True).first()
    bands = found["bands"]
    return {
        "depth": found["depth"],
        "active": found["active"],
        "cap": cap,
        "by_priority": None if bands is None else {name: stats["depth"] for name, stats in bands.items()},
        "bands": bands,
        "queues": found["queues"],
        "workers": found["workers"],
    }


def _over_queues(queues: list[QueueSummary]) -> dict[str, dict[str, float | None]]:
    result: dict[str, dict[str, float | None]] = {}
    for band in Band:
        ages = [queue.bands[band].oldest_seconds for queue in queues]
        known = [age for age in ages if age is not None]
        result[band.label] = {
            "depth": sum(queue.bands[band].depth for queue in queues),
            "oldest_seconds": max(known) if known else None,
        }
    return result


def _as_dict(queue: QueueSummary) -> dict[str, Any]:
    return {
        "name": queue.name,
        "paused": queue.paused,
        "max_concurrent": queue.max_concurrent,
        "active": queue.active,
        "depth": queue.depth,
        "bands": {
            band.label: {"depth": stats.depth, "oldest_seconds": stats.oldest_seconds}
            for band, stats in queue.bands.items()
        },
    }


def worker_counts() -> dict[str, int]:
    """Return live workers by status, and their slots."""
    live = Worker.objects.filter(status__in=[WorkerStatus.ACTIVE, WorkerStatus.DRAINING])
    counts = dict(live.values_list("status").annotate(Count("id")))
    return {
        "active": counts.get(WorkerStatus.ACTIVE, 0),
        "draining": counts.get(WorkerStatus.DRAINING, 0),
        "slots": live.aggregate(total=Sum("concurrency"))["total"] or 0,
    }


def throughput(window: timedelta) -> dict[str, int]:
    """Return how many tasks ended within the window, by state."""
    ended = Task.objects.filter(finished_at__gte=timezone.now() - window).values_list("status").annotate(Count("id"))
    counts = {status.value: 0 for status in Status if status not in PENDING}
    return counts | dict(ended)


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
