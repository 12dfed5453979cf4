"""Numbers about queues and workers, counted by the index where possible."""

import uuid
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import datetime, timedelta
from itertools import islice
from math import ceil
from typing import Any, Final, NamedTuple

from django.db.models import Count, Min, OuterRef, Subquery, Sum
from django.utils import timezone

from queue_app import conf
from queue_app.core.autoscale import UNKNOWN_SECONDS, Demand, Headroom, Waiting, demand
from queue_app.core.limits import Lane, Scope, names_of, parse_lane
from queue_app.core.priorities import Band
from queue_app.core.states import PENDING, Status
from queue_app.exceptions import IndexUnavailable
from queue_app.index import get_index
from queue_app.index.stats import QueueDepth
from queue_app.models import Limit, Queue, RuntimeSettings, Task, Worker
from queue_app.models.worker import LIVING, WorkerStatus
from queue_app.services.way import follow
from queue_app.sql import stats as rows
from queue_app.sql.database import alias

#: States of the index. Unless it is ready, its counts are not those of the rows.
READY: Final = "ready"
#: Claims are allowed while a rebuild adds tasks.
LOADING: Final = "loading"
UNREACHABLE: Final = "unreachable"


@dataclass(frozen=True, slots=True)
class BandStats:
    """The number of queued tasks of one effective band, and the age of the oldest in seconds."""

    depth: int
    oldest_age_seconds: float | None


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
        return sum(band.depth for band in self.bands.values())

    def as_dict(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "paused": self.paused,
            "max_concurrent": self.max_concurrent,
            "active": self.active,
            "depth": self.depth,
            "bands": {band.label: asdict(stats) for band, stats in self.bands.items()},
        }


def queue_summary(queue: Queue) -> QueueSummary:
    """Return how many tasks of a queue wait and run. Raises ``IndexUnavailable``."""
    follow()
    return summary_of(queue, get_index().depth(queue.name))


def index_state() -> str:
    """Return ready, loading, rebuilding, missing or unreachable."""
    follow()
    try:
        return get_index().generation().state
    except IndexUnavailable:
        return UNREACHABLE


def summaries(queues: Iterable[Queue]) -> tuple[dict[str, QueueSummary], str]:
    """Return {name: summary} of queues by the index if it is ready, else by the rows; and the state of the index.

    Stops asking the index at the first error, so that an unreachable server costs one timeout, not one per queue.
    """
    queues = list(queues)
    state = index_state()
    if state == READY:
        try:
            return {queue.name: summary_of(queue, get_index().depth(queue.name)) for queue in queues}, READY
        except IndexUnavailable:
            state = UNREACHABLE
    known = depths_of_rows()
    return {queue.name: summary_of(queue, known.get(queue.name) or nothing(queue.name)) for queue in queues}, state


def nothing(name: str) -> QueueDepth:
    """Return the counts of a queue in which no task waits or runs."""
    return QueueDepth(name, 0, dict.fromkeys(Band, 0), {})


def depths_of_rows(queue: str = "") -> dict[str, QueueDepth]:
    """Return the waiting and running tasks of each queue, or of one, counted from the rows.

    This reads every queued task once, so its cost grows with them; callers share the answer for some seconds.
    """
    found: dict[str, QueueDepth] = {}

    def of(name: str) -> QueueDepth:
        return found.setdefault(name, nothing(name))

    tasks = Task.objects.filter(queue=queue) if queue else Task.objects.all()
    queued = tasks.filter(status=Status.QUEUED).with_effective_priority().order_by()
    grouped = queued.values_list("queue", "effective_priority").annotate(Count("id"), Min("queued_at"))
    for name, band, count, oldest in grouped:
        of(name).counts[Band(band)] = count
        of(name).oldest[Band(band)] = oldest
    executing = tasks.filter(status=Status.EXECUTING).order_by().values_list("queue").annotate(Count("id"))
    return found | {name: replace(of(name), active=count) for name, count in executing}


def summary_of(queue: Queue, depth: QueueDepth) -> QueueSummary:
    """Return the summary of a queue from its counts."""
    now = timezone.now()
    bands = {band: BandStats(depth.counts[band], _age(depth.oldest.get(band), now)) for band in Band}
    return QueueSummary(queue.name, queue.paused, queue.cap, depth.active, bands)


def _age(since: datetime | None, now: datetime) -> float | None:
    return None if since is None else max(0.0, round((now - since).total_seconds(), 3))


def queue_stats() -> dict[str, Any]:
    """Return depths and ages per band, workers, the last minute's throughput; by the rows unless the index is ready."""
    found, state = summaries(Queue.objects.all())
    queues = list(found.values())
    return {
        "index": state,
        "depth": sum(queue.depth for queue in queues),
        "active": Task.objects.in_status(Status.EXECUTING).count(),
        "queues": _sum_over_queues(queues),
        "by_queue": [queue.as_dict() for queue in queues],
        "workers": worker_counts(),
        "throughput": _last_minute(),
    }


def admin_queue() -> dict[str, Any]:
    """Return depth, active tasks, the overall limit, and the depth by effective band."""
    stats = queue_stats()
    bands = stats["queues"]
    return {
        "depth": stats["depth"],
        "active": stats["active"],
        "cap": RuntimeSettings.objects.values_list("max_concurrent", flat=True).first(),
        "by_priority": {name: band["depth"] for name, band in bands.items()},
        "queues": bands,
        "by_queue": stats["by_queue"],
        "workers": stats["workers"],
    }


def _sum_over_queues(queues: list[QueueSummary]) -> dict[str, dict[str, Any]]:
    result: dict[str, dict[str, Any]] = {}
    for band in Band:
        stats = [queue.bands[band] for queue in queues]
        oldest = max((one.oldest_age_seconds for one in stats if one.oldest_age_seconds is not None), default=None)
        result[band.label] = {"depth": sum(one.depth for one in stats), "oldest_age_seconds": oldest}
    return result


def worker_counts() -> dict[str, int]:
    """Return the number of workers by status, the slots of the living ones, and how many of these are in use.

    A worker may hold more quick tasks than it has slots: it claims a few milliseconds of work ahead.
    """
    counts = dict(Worker.objects.values_list("status").annotate(Count("id")))
    living = Worker.objects.filter(status__in=LIVING)
    slots = dict(living.values_list("id", "concurrency"))
    held = Task.objects.in_status(Status.EXECUTING).values_list("worker_id").annotate(Sum("weight"))
    return {
        "active": counts.get(WorkerStatus.ACTIVE, 0),
        "draining": counts.get(WorkerStatus.DRAINING, 0),
        "dead": counts.get(WorkerStatus.DEAD, 0),
        "total_capacity": sum(slots.values()),
        "used_capacity": sum(min(taken, slots.get(worker_id, 0)) for worker_id, taken in held),
    }


def tasks_of(workers: Sequence[Worker]) -> dict[uuid.UUID, list[tuple[uuid.UUID, int]]]:
    """Return the ids and weights of the tasks that each worker runs."""
    found: dict[uuid.UUID, list[tuple[uuid.UUID, int]]] = defaultdict(list)
    running = Task.objects.in_status(Status.EXECUTING).filter(worker_id__in=[worker.id for worker in workers])
    for worker_id, task_id, weight in running.order_by("id").values_list("worker_id", "id", "weight"):
        found[worker_id].append((task_id, weight))
    return found


def throughput(window: timedelta) -> dict[str, int]:
    """Return how many tasks ended within the window, by state."""
    ended = Task.objects.filter(finished_at__gte=timezone.now() - window).values_list("status").annotate(Count("id"))
    counts = {status.value: 0 for status in Status if status not in PENDING}
    return counts | dict(ended)


def _last_minute() -> dict[str, int]:
    return {f"{name}_last_minute": count for name, count in throughput(timedelta(minutes=1)).items()}


class Running(NamedTuple):
    """An executing task, its worker, and how long it has been running."""

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
        Running(task_type, queue, worker or "?", attempt, max(0.0, (now - started_at).total_seconds()))
        for task_type, queue, worker, attempt, started_at in found
    ]


# How many workers a queue could use, for autoscalers.
#
# Counts the lanes of the index, and where keys or users are limited the first 10 000 tasks in them, so the cost does
# not grow with the number of waiting tasks. Limits, pauses and workers come from the rows. Tasks held back by a pause,
# a limit, a rate or the lack of an able worker ask for no workers, because these would idle. See ``core.autoscale``.

#: Default for the seconds within which the workers should finish the backlog.
TARGET_SECONDS: Final = 60.0
#: Maximum number of lanes, and of tasks in them, that are counted. If there are more, these are demand enough.
MAX_LANES: Final = 10_000


def autoscale(queue: Queue, *, slots: int | None = None, seconds: float = TARGET_SECONDS) -> Demand:
    """Return how many workers with ``slots`` slots finish the backlog of a queue within ``seconds``.

    ``slots`` defaults to the average of the queue's live workers. Raises ``IndexUnavailable``.
    """
    sizes = _sizes(queue)
    active = Worker.objects.using(alias()).filter(status=WorkerStatus.ACTIVE)
    workers = [worker for worker in active if worker.serves(queue.name)]
    if slots is None:
        default = conf.get().worker.concurrency
        slots = ceil(sum(worker.concurrency for worker in workers) / len(workers)) if workers else default
    executing = rows.active()
    gates = _Gates(queue, executing, timezone.now())
    lanes = [(parse_lane(name), size) for name, size in sorted(sizes.items())]
    waiting = [Waiting(count, lane.weight, _has_worker(lane, workers), gates.of(lane)) for lane, count in lanes]
    mean = rows.mean_seconds(queue.name)
    return demand(
        waiting,
        gates.all(),
        active_slots=sum(found.slots for found in executing if found.queue == queue.name),
        mean=UNKNOWN_SECONDS if mean is None else mean,
        seconds=seconds,
        slots=slots,
    )


def _sizes(queue: Queue) -> Counter[str]:
    """Return the number of waiting tasks by lane; where limits tell keys or users apart, lanes name them."""
    index, left = get_index(), MAX_LANES
    found = Counter(dict(islice(index.lane_sizes(queue.name), MAX_LANES)))
    limited = Limit.objects.using(alias()).filter(scope=Scope.KEY.value).exists()
    if not limited and queue.max_concurrent_per_user is None:
        return found
    for lane in sorted(found):
        cursor = -1
        while cursor and left > 0:
            cursor, entries = index.entries(lane, max(cursor, 0))
            left -= len(entries)
            found[lane] -= len(entries)
            found.update(address for address, _ in entries)
    return +found


def _has_worker(lane: Lane, workers: Sequence[Worker]) -> bool:
    """Return whether a live worker could run tasks of the lane; without any worker, true, so that one is started."""
    return not workers or any(
        worker.can_run(lane.task_type, lane.capabilities) and lane.weight <= worker.concurrency for worker in workers
    )


class _Gates:
    """The gates of a queue. Lanes that pass the same gate share one object, because they share its room."""

    def __init__(self, queue: Queue, executing: Sequence[rows.Active], now: datetime) -> None:
        self._queue, self._now = queue, now
        self._active: Counter[tuple[str, str]] = Counter()
        for found in executing:
            self._active["all", ""] += found.tasks
            self._active["type", found.task_type] += found.tasks
            self._active["key", found.key] += found.tasks
            if found.queue == queue.name:
                self._active["queue", ""] += found.tasks
                self._active["user", found.user] += found.tasks
        self._limits = {(limit.scope, limit.name): limit for limit in Limit.objects.using(alias()).all()}
        self._gates: dict[tuple[str, str], Headroom] = {("queue", ""): self._room([queue], "queue", "")}
        overall = RuntimeSettings.objects.using(alias()).filter(pk=1).first()
        if overall is not None:
            self._gates["all", ""] = self._room([overall], "all", "")

    def all(self) -> list[Headroom]:
        return list(self._gates.values())

    def of(self, lane: Lane) -> list[Headroom]:
        found = [self._gates[name] for name in (("all", ""), ("queue", "")) if name in self._gates]
        found += self._limited(Scope.TYPE, lane.task_type)
        found += self._limited(Scope.KEY, lane.key)
        most = self._queue.max_concurrent_per_user
        if lane.user and most is not None:
            name = ("user", lane.user)
            found.append(self._gates.setdefault(name, Headroom(free=most - self._active[name])))
        return found

    def _limited(self, scope: Scope, name: str) -> list[Headroom]:
        """Return the room of a task type or key, if it is limited; a key is also limited by its family."""
        if (scope.value, name) not in self._gates:
            names = names_of(scope, name)
            limits = [self._limits[scope.value, one] for one in names if (scope.value, one) in self._limits]
            if not limits:
                return []
            self._gates[scope.value, name] = self._room(limits, scope.value, name)
        return [self._gates[scope.value, name]]

    def _room(self, limits: Sequence[Any], scope: str, name: str) -> Headroom:
        """Return the room by the gate's own row and its family's; ``RuntimeSettings`` has no rates.

        As in the index (``lua/lib/limits.lua``): a pause in any row closes the gate; limit and rate are those of the
        first row that has one.
        """
        first = next((row for row in limits if row.max_concurrent is not None or _rates(row)), limits[0])
        return Headroom(
            free=None if first.cap is None else first.cap - self._active[scope, name],
            rate=min(_rates(first), default=None),
            is_closed=any(self._is_closed(row) for row in limits),
        )

    def _is_closed(self, row: Any) -> bool:
        until = getattr(row, "throttled_until", None)
        return bool(row.paused or (until is not None and until > self._now))


def _rates(row: Any) -> list[float]:
    """Return the starts per second that the rate and the minimum delay allow, where set."""
    count, delay = getattr(row, "rate_count", None), getattr(row, "min_delay_seconds", None)
    return ([count / row.rate_seconds] if count else []) + ([1 / delay] if delay else [])
