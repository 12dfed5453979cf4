"""How many workers a queue could use, for autoscalers.

Counts the lanes of the index, so its cost does not depend on how much waits, and reads
limits, pauses and workers from the rows. What a pause, a cap, a rate or the lack of an able
worker holds back asks for no workers: more of them would idle. See ``core.autoscale``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from datetime import datetime
from math import ceil
from typing import Any, Final

from django.utils import timezone

from queue_app import conf
from queue_app.core.autoscale import UNKNOWN_SECONDS, Demand, Gate, Waiting, demand
from queue_app.core.lanes import Lane, parse_lane
from queue_app.index import get_index
from queue_app.models import Limit, Queue, RuntimeSettings, Worker
from queue_app.models.limit import Scope
from queue_app.models.worker import WorkerStatus
from queue_app.sql import stats as rows
from queue_app.sql.database import alias

#: Seconds within which the backlog shall be worked off, unless the caller says otherwise.
TARGET_SECONDS: Final = 60.0
#: Lanes that are looked at; of more the rest is estimated by leaving it out, and there is demand enough as it is.
MAX_LANES: Final = 10_000


def autoscale(queue: Queue, *, slots: int | None = None, seconds: float = TARGET_SECONDS) -> Demand:
    """Return the demand of a queue for workers with ``slots`` slots, to be met within ``seconds``.

    Without ``slots``, as many as its live workers have on average. Raises ``IndexUnavailable``.
    """
    lanes = _lanes(queue.name)
    workers = [
        worker
        for worker in Worker.objects.using(alias()).filter(status=WorkerStatus.ACTIVE)
        if not worker.queues or queue.name in worker.queues
    ]
    if slots is None:
        default = conf.get().worker.concurrency
        slots = ceil(sum(worker.concurrency for worker in workers) / len(workers)) if workers else default
    executing = rows.active()
    gates = _Gates(queue, executing, timezone.now())
    waiting = [Waiting(count, lane.weight, _able(lane, workers), gates.of(lane)) for lane, count in lanes]
    mean = rows.mean_seconds(queue.name)
    return demand(
        waiting,
        gates.all(),
        active_slots=sum(found.slots for found in executing if found.queue == queue.name),
        mean=UNKNOWN_SECONDS if mean is None else mean,
        seconds=seconds,
        slots=slots,
    )


def _lanes(queue: str) -> list[tuple[Lane, int]]:
    sizes: dict[str, int] = {}
    for name, size in get_index().lane_sizes(queue):
        sizes[name] = size
        if len(sizes) >= MAX_LANES:
            break
    return [(parse_lane(name), size) for name, size in sorted(sizes.items())]


def _able(lane: Lane, workers: Sequence[Worker]) -> bool:
    """Whether some live worker could run it; where there is none at all, the first one has to be started."""
    return not workers or any(
        lane.task_type in worker.task_types
        and set(lane.capabilities) <= set(worker.capabilities)
        and lane.weight <= worker.concurrency
        for worker in workers
    )


class _Gates:
    """The gates of a queue, each made once."""

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
        overall = RuntimeSettings.objects.using(alias()).filter(pk=1).first()
        self._made: dict[tuple[str, str], Gate] = {("queue", ""): self._gate([queue], "queue", "")}
        if overall is not None:
            self._made["all", ""] = self._gate([overall], "all", "")

    def all(self) -> list[Gate]:
        """Return all that were made."""
        return list(self._made.values())

    def of(self, lane: Lane) -> list[Gate]:
        """Return the gates that the tasks of a lane pass."""
        found = [self._made[name] for name in (("all", ""), ("queue", "")) if name in self._made]
        found += self._limited(Scope.TYPE, lane.task_type)
        found += self._limited(Scope.KEY, lane.key)
        most = self._queue.max_concurrent_per_user
        if lane.user and most is not None:
            name = ("user", lane.user)
            if name not in self._made:
                self._made[name] = Gate(free=most - self._active[name])
            found.append(self._made[name])
        return found

    def _limited(self, scope: Scope, name: str) -> list[Gate]:
        if (scope.value, name) not in self._made:
            rows = [self._limits[scope.value, row] for row in _named(scope, name) if (scope.value, row) in self._limits]
            if not rows:
                return []
            self._made[scope.value, name] = self._gate(rows, scope.value, name)
        return [self._made[scope.value, name]]

    def _gate(self, rows: Sequence[Any], scope: str, name: str) -> Gate:
        """Return the gate of its own row and that of its family; runtime settings know no rates.

        As in the index (``lua/lib/limits.lua``): any row shuts it, and cap and rate are those
        of the first row that has some.
        """
        paced = next((row for row in rows if row.max_concurrent is not None or _rates(row)), rows[0])
        return Gate(
            free=None if paced.max_concurrent is None else paced.max_concurrent - self._active[scope, name],
            rate=min(_rates(paced), default=None),
            shut=any(self._is_shut(row) for row in rows),
        )

    def _is_shut(self, row: Any) -> bool:
        until = getattr(row, "throttled_until", None)
        return bool(row.paused or (until is not None and until > self._now))


def _named(scope: Scope, name: str) -> list[str]:
    """Return the rows that may limit a type or key, its own first; a key also belongs to a family."""
    family, colon, _ = name.partition(":")
    return [name, family] if scope == Scope.KEY and family and colon else [name]


def _rates(row: Any) -> list[float]:
    """Return how many a second may start by rate, and by delay."""
    count, delay = getattr(row, "rate_count", None), getattr(row, "min_delay_seconds", None)
    return ([count / row.rate_seconds] if count else []) + ([1 / delay] if delay else [])
