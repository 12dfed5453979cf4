"""How many workers a queue could use, for autoscalers.

Counts the lanes of the index, and where keys or users are limited the first 10 000 tasks in them, so the cost does not
grow with the number of waiting tasks. Limits, pauses and workers come from the rows. Tasks held back by a pause, a
limit, a rate or the lack of an able worker ask for no workers, because these would idle. See ``core.autoscale``.
"""

from collections import Counter
from collections.abc import Sequence
from datetime import datetime
from itertools import islice
from math import ceil
from typing import Any, Final

from django.utils import timezone

from queue_app import conf
from queue_app.core.autoscale import UNKNOWN_SECONDS, Demand, Headroom, Waiting, demand
from queue_app.core.lanes import Lane, parse_lane
from queue_app.core.limit_values import Scope, names_of
from queue_app.index import get_index
from queue_app.models import Limit, Queue, RuntimeSettings, Worker
from queue_app.models.worker import WorkerStatus
from queue_app.sql import stats as rows
from queue_app.sql.database import alias

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
