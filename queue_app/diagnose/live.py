"""The current state of everything, for the overview. It costs O(queues + workers + schedules), never O(tasks).

A snapshot of a queue describes the last full minute, and maintenance takes one a minute, so it is up to two minutes
late. Unless the last one had very many, one query counts the tasks that ended in the last 60 seconds.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Final

from django.db.models import Q
from django.utils import timezone

from queue_app import conf
from queue_app.core import rooms
from queue_app.core.priorities import Band
from queue_app.core.sentence import joined, sentence
from queue_app.core.shared import Shared
from queue_app.diagnose import stalls
from queue_app.diagnose.system import System, troubles
from queue_app.exceptions import IndexUnavailable
from queue_app.index import get_index, patience
from queue_app.index.stats import IndexStats, QueueDepth
from queue_app.models import DeadLetter, MaintenanceJob, PriorityPolicy, Queue, RuntimeSettings, Worker
from queue_app.models.worker import LIVING, WorkerStatus
from queue_app.services.read import stats
from queue_app.services.read.stats import READY, UNREACHABLE, nothing
from queue_app.services.upkeep.jobs import leader_lapses
from queue_app.services.upkeep.promote import JOB as PROMOTE
from queue_app.services.way import follow
from queue_app.sql import stats as rows

#: Seconds for which viewers share the state, the snapshots, and the counts of ended tasks.
FRESH: Final = 1.5
FRESH_HISTORY: Final = 15.0
FRESH_ENDED: Final = 4.0
HISTORY: Final = timedelta(minutes=60)
#: Maximum age of a snapshot that describes the last minute.
CURRENT: Final = timedelta(minutes=3)
MAX_WORKERS: Final = 2000
#: Maximum number of tasks that ended within a minute, by the snapshots, with which the rows are counted instead.
COUNTED: Final = 20_000
#: Number of dead letters at which counting stops.
MAX_DEAD: Final = 1000
#: Heartbeat intervals of silence after which a worker is late.
LATE_BEATS: Final = 2
#: Share of a leadership after which its scheduler is silent: it renews it five times, so it has missed two.
SILENT_SHARE: Final = 0.4
#: For how long the overview names workers that died.
DIED_LATELY: Final = timedelta(minutes=10)


#: What pages say of their numbers while the index cannot count.
NUMBERS_OF_ROWS: Final = sentence("The numbers of queued and running tasks are PostgreSQL's.")


@dataclass(frozen=True, slots=True)
class BandRow:
    """The queued tasks of one band of a queue."""

    band: Band
    depth: int
    oldest: float | None
    target: float | None

    @property
    def is_late(self) -> bool:
        """Whether the oldest task waits longer than the target of its band."""
        return self.oldest is not None and self.target is not None and self.oldest > self.target


@dataclass(slots=True)
class QueueRow:
    """One queue: its row, its state in the index, its recent history."""

    queue: Queue
    active: int  # running tasks
    bands: list[BandRow] = field(default_factory=list)
    depths: list[int] = field(default_factory=list)  # of the last hour, one a minute
    completed: int | None = None  # per minute, see ``live``; None: unknown
    failed: int | None = None
    workers: int = 0  # active workers that serve the queue
    slots: int = 0
    fetched_ahead: int = 0  # of ``active``: fetched by workers and not started; there may be more

    @property
    def depth(self) -> int:
        return sum(row.depth for row in self.bands)

    @property
    def oldest(self) -> float:
        """The longest wait in seconds."""
        return max((row.oldest for row in self.bands if row.oldest is not None), default=0.0)

    @property
    def is_late(self) -> bool:
        """Whether a task waits longer than the target of its band."""
        return any(row.is_late for row in self.bands)


#: Seconds for which viewers share the numbers of the rows. Counting reads every queued task.
FRESH_ROWS: Final = 5.0
rows_shared: Final = Shared(lambda _: stats.depths_of_rows(), lambda _: FRESH_ROWS)


def depths(index: IndexStats | None) -> dict[str, QueueDepth]:
    """Return the counts of all queues: of the index if it is ready, else of the rows."""
    if index is None or index.state != READY:
        return rows_shared.get()
    return {depth.queue: depth for depth in index.queues}


@dataclass(frozen=True, slots=True)
class OverviewPart:
    """What a room finds that needs a person, for those who have a permission; it is read with everything else."""

    permission: str
    read: Callable[[], Any]
    show: Callable[[Any], list[Any]]  # ``OverviewReason``s


@dataclass(slots=True)
class Live:
    """The state of everything at one moment."""

    at: datetime
    system: System  # unless the index is ready, the numbers come from the rows
    settings: RuntimeSettings
    queues: list[QueueRow]
    depth: int  # queued tasks
    active: int  # running tasks
    completed: int  # in the last known minute
    failed: int
    active_workers: int
    late_workers: int
    died: list[tuple[str, datetime]]  # names of the workers that died lately, and when, the last first
    reached_at: datetime | None  # when Redis last answered, as far as is known
    slots: int  # of the active workers
    dead_letters: str  # open ones; "1000+" if counting stopped, empty for none
    parts: dict[str, Any]  # what ``OverviewPart`` reads, by name
    fetched_ahead: int  # of ``active``, those that wait in a worker for a slot
    silent_seconds: float  # for which the leading scheduler has not renewed its leadership; 0: it is on time

    @property
    def why_of_rows(self) -> str:
        """Why the numbers come from the rows; empty if they come from the index."""
        if self.system.index == READY:
            return ""
        return joined(" ".join(each.text for each in troubles(System(self.system.index))), NUMBERS_OF_ROWS)

    @property
    def counted_by(self) -> str:
        """The source of the numbers of queued and running tasks."""
        if self.system.index == READY and not (self.system.way and self.system.way.is_rows):
            return sentence("counted by the index in Redis")
        return sentence("counted in the rows of PostgreSQL")


def is_late(worker: Worker, now: datetime) -> bool:
    """Return whether a live worker missed more than one heartbeat."""
    silent = (now - worker.last_heartbeat_at).total_seconds()
    return worker.status in LIVING and silent > LATE_BEATS * worker.heartbeat_seconds


def _read(_key: str) -> Live:
    now = timezone.now()
    way, lapses = follow(), leader_lapses()
    targets = dict(PriorityPolicy.objects.values_list("priority", "target_seconds"))
    found_stats, reached_at = _stats(now)
    known = depths(found_stats)
    died = Q(status=WorkerStatus.DEAD, stopped_at__gte=now - DIED_LATELY)
    wanted = Worker.objects.filter(Q(status__in=LIVING) | died).order_by("name")
    workers = list(wanted.defer("task_types")[:MAX_WORKERS])
    active = [worker for worker in workers if worker.status == WorkerStatus.ACTIVE]
    living = [worker for worker in workers if worker.status in LIVING]
    found = [  # the index may not know a queue in which nothing ever waited
        _row(queue, known.get(queue.name) or nothing(queue.name), targets, living, now)
        for queue in Queue.objects.order_by("name")
    ]
    _add_history(found, now)
    dead_letters = DeadLetter.objects.open().values("pk")[:MAX_DEAD].count()
    return Live(
        at=now,
        system=System(
            found_stats.state if found_stats else UNREACHABLE, lapses is not None, watched=stalls.read(), way=way
        ),
        settings=RuntimeSettings.objects.first() or RuntimeSettings(),
        queues=found,
        depth=sum(row.depth for row in found),
        active=sum(row.active for row in found),
        completed=sum(row.completed or 0 for row in found),
        failed=sum(row.failed or 0 for row in found),
        active_workers=len(active),
        late_workers=sum(is_late(worker, now) for worker in workers),
        died=sorted(
            ((each.name, each.stopped_at) for each in workers if each.status == WorkerStatus.DEAD and each.stopped_at),
            key=lambda dead: dead[1],
            reverse=True,
        ),
        reached_at=reached_at,
        slots=sum(worker.concurrency for worker in active),
        parts={name: part.read() for name, part in rooms.named("overview").items()},
        fetched_ahead=max(0, sum(row.active for row in found) - sum(each.concurrency for each in living)),
        silent_seconds=_silent_seconds(lapses),
        dead_letters=f"{MAX_DEAD}+" if dead_letters >= MAX_DEAD else str(dead_letters or ""),
    )


#: When Redis last answered this process.
_answered: dict[str, datetime] = {}


def _stats(now: datetime) -> tuple[IndexStats | None, datetime | None]:
    """Return the numbers of the index, and when Redis last answered this process or the upkeep job that needs Redis."""
    try:
        with patience():
            found = get_index().stats()
    except IndexUnavailable:
        promoted = MaintenanceJob.objects.filter(pk=PROMOTE).values_list("succeeded_at", flat=True).first()
        return None, max((at for at in (_answered.get("at"), promoted) if at is not None), default=None)
    _answered["at"] = now
    return found, now


def _silent_seconds(lapses: float | None) -> float:
    """Return for how long the leading scheduler has been silent, if it has missed renewals of its leadership."""
    length = conf.get().scheduler.leader_seconds
    return 0.0 if lapses is None or lapses > length * (1 - SILENT_SHARE) else length - lapses


def _row(
    queue: Queue, depth: QueueDepth, targets: dict[int, float | None], workers: Sequence[Worker], now: datetime
) -> QueueRow:
    row = QueueRow(queue, depth.active)
    for band, count in depth.counts.items():
        since = depth.oldest.get(band)
        age = None if since is None else max(0.0, (now - since).total_seconds())
        row.bands += [BandRow(band, count, age, targets.get(band.value))] if count else []
    serving = [worker for worker in workers if worker.serves(queue.name)]
    active = [worker.concurrency for worker in serving if worker.status == WorkerStatus.ACTIVE]
    row.workers, row.slots = len(active), sum(active)
    row.fetched_ahead = max(0, row.active - sum(worker.concurrency for worker in serving))
    return row


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
    if sum((row.completed or 0) + (row.failed or 0) for row in queues) <= COUNTED:
        ended = _ended.get()
        for row in queues:
            row.completed, row.failed = ended.get(row.queue.name, (0, 0))


shared: Final = Shared(_read, lambda _: FRESH)
_history: Final = Shared(_read_history, lambda _: FRESH_HISTORY)
_ended: Final = Shared(lambda _: rows.ended_lately(), lambda _: FRESH_ENDED)


def current() -> Live:
    """Return the state of everything, at most ``FRESH`` seconds old."""
    return shared.get()
