"""The state of everything for the overview: O(queues + workers), never O(tasks), and shared between viewers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from django.utils import timezone

from queue_app.core.priorities import Band
from queue_app.dashboard.cache import Shared
from queue_app.dashboard.history import add_history
from queue_app.dashboard.history import forget as forget_history
from queue_app.dashboard.queue_row import BandRow, QueueRow
from queue_app.exceptions import IndexUnavailable
from queue_app.index import get_index
from queue_app.index.stats import IndexStats, QueueDepth
from queue_app.models import DeadLetter, PriorityPolicy, Queue, RuntimeSettings, Worker
from queue_app.models.worker import WorkerStatus

#: Seconds for which viewers share one look.
FRESH: Final = 1.5
MAX_WORKERS: Final = 2000
#: Counting stops there.
MAX_DEAD: Final = 1000
#: More missed heartbeats than this make a worker late.
LATE_BEATS: Final = 2


@dataclass(slots=True)
class LiveWorker:
    """A worker that has not ended."""

    id: object
    name: str
    status: str
    queues: Sequence[str]
    concurrency: int
    silent: float
    is_late: bool


@dataclass(slots=True)
class Live:
    """One look at everything."""

    at: datetime
    index: str  # ready, rebuilding, missing or unreachable
    error: str
    has_leader: bool | None  # None: not known
    settings: RuntimeSettings
    queues: list[QueueRow]
    workers: list[LiveWorker]
    dead_letters: int

    @property
    def depth(self) -> int:
        """All that is queued."""
        return sum(row.depth for row in self.queues)

    @property
    def active(self) -> int:
        """All that runs."""
        return sum(row.active or 0 for row in self.queues)

    @property
    def completed(self) -> int:
        """What was completed in a minute, the last one that is known."""
        return sum(row.completed or 0 for row in self.queues)

    @property
    def failed(self) -> int:
        """What failed for good then."""
        return sum(row.failed or 0 for row in self.queues)

    @property
    def slots(self) -> int:
        """Slots of the active workers."""
        return sum(worker.concurrency for worker in self.workers if worker.status == WorkerStatus.ACTIVE)

    @property
    def active_workers(self) -> int:
        """Workers that take tasks."""
        return sum(worker.status == WorkerStatus.ACTIVE for worker in self.workers)

    @property
    def late_workers(self) -> int:
        """Workers that missed heartbeats."""
        return sum(worker.is_late for worker in self.workers)

    @property
    def dead_letters_shown(self) -> str:
        """The open dead letters; ``1000+`` where counting stopped."""
        return f"{MAX_DEAD}+" if self.dead_letters >= MAX_DEAD else str(self.dead_letters)

    def bands(self) -> dict[str, int]:
        """Return what waits by band, over all queues."""
        counts = {band.label: 0 for band in Band}
        for row in self.queues:
            for band in row.bands:
                counts[band.band.label] += band.depth
        return counts


def _look(_key: str) -> Live:
    now = timezone.now()
    queues = list(Queue.objects.order_by("name"))
    targets = dict(PriorityPolicy.objects.values_list("priority", "target_seconds"))
    stats, error = _stats()
    depths = {} if stats is None else {depth.queue: depth for depth in stats.queues}
    workers = _workers(now)
    rows = [_row(queue, _depth(queue, depths, error), targets, workers, now) for queue in queues]
    add_history(rows, now)
    return Live(
        at=now,
        index="unreachable" if stats is None else stats.state,
        error=error,
        has_leader=None if stats is None else stats.leader_lapses is not None,
        settings=RuntimeSettings.objects.first() or RuntimeSettings(),
        queues=rows,
        workers=workers,
        dead_letters=DeadLetter.objects.open().values("pk")[:MAX_DEAD].count(),
    )


def _stats() -> tuple[IndexStats | None, str]:
    """Ask the index once about everything."""
    try:
        return get_index().stats(), ""
    except IndexUnavailable as failure:
        return None, str(failure)


def _depth(queue: Queue, depths: dict[str, QueueDepth], error: str) -> QueueDepth | None:
    """Return what waits in a queue; nothing where the index has never heard of it, ``None`` where it is away."""
    if error:
        return None
    return depths.get(queue.name) or QueueDepth(queue.name, 0, dict.fromkeys(Band, 0), {})


def _workers(now: datetime) -> list[LiveWorker]:
    found = Worker.objects.filter(status__in=[WorkerStatus.ACTIVE, WorkerStatus.DRAINING]).order_by("name")
    return [_worker(worker, now) for worker in found.defer("task_types")[:MAX_WORKERS]]


def _worker(worker: Worker, now: datetime) -> LiveWorker:
    silent = max(0.0, (now - worker.last_heartbeat_at).total_seconds())
    is_late = silent > LATE_BEATS * worker.heartbeat_seconds
    return LiveWorker(worker.id, worker.name, worker.status, worker.queues, worker.concurrency, silent, is_late)


def _row(
    queue: Queue,
    depth: QueueDepth | None,
    targets: dict[int, float | None],
    workers: Sequence[LiveWorker],
    now: datetime,
) -> QueueRow:
    row = QueueRow(queue, None if depth is None else depth.active)
    if depth is not None:
        row.bands = [
            BandRow(band, count, _age(depth.oldest.get(band), now), targets.get(band.value))
            for band, count in depth.counts.items()
            if count
        ]
    serving = [w for w in workers if w.status == WorkerStatus.ACTIVE and (not w.queues or queue.name in w.queues)]
    row.workers, row.slots = len(serving), sum(worker.concurrency for worker in serving)
    return row


def _age(since: datetime | None, now: datetime) -> float | None:
    return None if since is None else max(0.0, (now - since).total_seconds())


shared: Final = Shared(_look, lambda _: FRESH)


def look() -> Live:
    """Return the state of everything, at most ``FRESH`` seconds old."""
    return shared.get()


def forget() -> None:
    """Make the next look a new one."""
    shared.forget()
    forget_history()
