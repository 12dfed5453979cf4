"""The current state of everything, for the overview. It costs O(queues + workers), never O(tasks).

A snapshot of a queue describes the last full minute, and maintenance takes one a minute. On a fresh
install, or after a quiet time, the snapshots would show ended tasks up to two minutes late. While
they show none, one query counts the tasks that ended in the last 60 seconds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from django.utils import timezone

from queue_app.core.priorities import Band
from queue_app.dashboard.cache import Shared
from queue_app.dashboard.queues import BandRow, QueueRow
from queue_app.exceptions import IndexUnavailable
from queue_app.index import get_index
from queue_app.index.stats import IndexStats, QueueDepth
from queue_app.models import DeadLetter, PriorityPolicy, Queue, RuntimeSettings, Worker
from queue_app.models.worker import WorkerStatus
from queue_app.sql import charts as rows

#: Seconds for which viewers share the state, the snapshots, and the counts of ended tasks.
FRESH: Final = 1.5
FRESH_HISTORY: Final = 15.0
FRESH_ENDED: Final = 4.0
HISTORY: Final = timedelta(minutes=60)
#: Maximum age of a snapshot that describes the last minute.
CURRENT: Final = timedelta(minutes=3)
MAX_WORKERS: Final = 2000
#: Number of dead letters at which counting stops.
MAX_DEAD: Final = 1000
#: Number of missed heartbeats that a worker may have without being late.
LATE_BEATS: Final = 2


@dataclass(slots=True)
class LiveWorker:
    """A worker that has not ended."""

    status: str
    queues: Sequence[str]
    concurrency: int
    is_late: bool


@dataclass(slots=True)
class Live:
    """The state of everything at one moment."""

    at: datetime
    index: str  # ready, rebuilding, missing or unreachable
    has_leader: bool | None  # None: unknown
    settings: RuntimeSettings
    queues: list[QueueRow]
    workers: list[LiveWorker]
    dead_letters: int

    @property
    def depth(self) -> int:
        """Number of queued tasks."""
        return sum(row.depth for row in self.queues)

    @property
    def active(self) -> int:
        """Number of running tasks."""
        return sum(row.active or 0 for row in self.queues)

    @property
    def completed(self) -> int:
        """Tasks completed in the last known minute."""
        return sum(row.completed or 0 for row in self.queues)

    @property
    def failed(self) -> int:
        """Tasks that failed for good in that minute."""
        return sum(row.failed or 0 for row in self.queues)

    @property
    def slots(self) -> int:
        """Slots of the active workers."""
        return sum(worker.concurrency for worker in self.workers if worker.status == WorkerStatus.ACTIVE)

    @property
    def active_workers(self) -> int:
        """Number of workers that take tasks."""
        return sum(worker.status == WorkerStatus.ACTIVE for worker in self.workers)

    @property
    def late_workers(self) -> int:
        """Number of workers that missed heartbeats."""
        return sum(worker.is_late for worker in self.workers)

    @property
    def dead_letters_text(self) -> str:
        """Number of open dead letters; ``1000+`` if counting stopped."""
        return f"{MAX_DEAD}+" if self.dead_letters >= MAX_DEAD else str(self.dead_letters)


def _read(_key: str) -> Live:
    now = timezone.now()
    queues = list(Queue.objects.order_by("name"))
    targets = dict(PriorityPolicy.objects.values_list("priority", "target_seconds"))
    stats = _stats()
    depths = {} if stats is None else {depth.queue: depth for depth in stats.queues}
    workers = _workers(now)
    found = []
    for queue in queues:
        # The index may not know a queue in which nothing ever waited.
        unknown = None if stats is None else QueueDepth(queue.name, 0, dict.fromkeys(Band, 0), {})
        found.append(_row(queue, depths.get(queue.name, unknown), targets, workers, now))
    _add_history(found, now)
    return Live(
        at=now,
        index="unreachable" if stats is None else stats.state,
        has_leader=None if stats is None else stats.leader_lapses is not None,
        settings=RuntimeSettings.objects.first() or RuntimeSettings(),
        queues=found,
        workers=workers,
        dead_letters=DeadLetter.objects.open().values("pk")[:MAX_DEAD].count(),
    )


def _stats() -> IndexStats | None:
    try:
        return get_index().stats()
    except IndexUnavailable:
        return None


def _workers(now: datetime) -> list[LiveWorker]:
    found = Worker.objects.filter(status__in=[WorkerStatus.ACTIVE, WorkerStatus.DRAINING]).order_by("name")
    return [
        LiveWorker(
            worker.status,
            worker.queues,
            worker.concurrency,
            (now - worker.last_heartbeat_at).total_seconds() > LATE_BEATS * worker.heartbeat_seconds,
        )
        for worker in found.defer("task_types")[:MAX_WORKERS]
    ]


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


def _read_history(names: str) -> dict[str, list[rows.Recent]]:
    found: dict[str, list[rows.Recent]] = {}
    for item in rows.recent(names.split(","), timezone.now() - HISTORY):
        found.setdefault(item.queue, []).append(item)
    return found


def _add_history(queues: Sequence[QueueRow], now: datetime) -> None:
    """Add the depths of the last hour, and the tasks that ended in the last minute."""
    known = _history.get(",".join(row.queue.name for row in queues))
    for row in queues:
        past = known.get(row.queue.name, [])
        row.depths = [item.depth or 0 for item in past]
        if past and now - past[-1].taken_at < CURRENT:
            row.completed, row.failed = past[-1].completed, past[-1].failed
    if not any(row.completed or row.failed for row in queues):
        ended = _ended.get()
        for row in queues:
            row.completed, row.failed = ended.get(row.queue.name, (row.completed, row.failed))


shared: Final = Shared(_read, lambda _: FRESH)
_history: Final = Shared(_read_history, lambda _: FRESH_HISTORY)
_ended: Final = Shared(lambda _: rows.ended_lately(), lambda _: FRESH_ENDED)


def current() -> Live:
    """Return the state of everything, at most ``FRESH`` seconds old."""
    return shared.get()
