"""Why queued tasks wait: which live workers could run them, what the others lack, and the limits that hold them.

``waits`` counts the tasks of each queue by reason, the longest wait first. The index has one lane for all tasks that
the same workers can run, with its size and its oldest task; where keys or users are limited, it tells the first ones
apart. So the cost depends on the number of lanes, not of tasks. While Redis is away, one query groups the rows. The
reasons are those of ``explain`` that limits, pauses and workers cause; what stops everything is not repeated.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from itertools import islice
from typing import Any, Final, Self

from django.db.models import Count, Min, Sum
from django.utils import timezone

from queue_app import conf, registry
from queue_app.core.limits import Lane, Scope, names_of
from queue_app.core.reasons import (
    KINDS,
    Kind,
    Level,
    Reason,
    all_of,
    moment,
    paused,
    rate_words,
    reason,
    subject,
    throttled,
)
from queue_app.core.sentence import listed, sentence, sentence_n
from queue_app.core.states import Status
from queue_app.exceptions import IndexUnavailable
from queue_app.index import get_index
from queue_app.index.server import WaitingLane, waiting_lanes
from queue_app.models import Limit, Queue, RuntimeSettings, Task, Worker
from queue_app.models.worker import WorkerStatus
from queue_app.sql import stats as rows
from queue_app.sql.database import alias
from queue_app.sql.workers import offered_until

#: Maximum number of workers that a sentence names.
NAMED: Final = 3
#: Maximum number of live workers that are compared with a task.
MAX_WORKERS: Final = 500
#: Maximum number of lanes per queue that are examined, and of kinds that one reason names.
MAX_LANES: Final = 5_000
MAX_KINDS: Final = 20

type TaskKind = tuple[str, tuple[str, ...], str]  # task type, capabilities, concurrency key
type Requirements = Task | Lane  # what a task asks of a worker: queue, type, capabilities and weight
#: Code of the reason that no worker is able -> what all of them lack, the first requirement first.
LACKS: Final = {
    "no_worker_for_queue": "queue",
    "no_worker_with_capabilities": "capabilities",
    "no_worker_knows_type": "task_type",
    "too_heavy": "slots",
}


@dataclass(frozen=True, slots=True)
class _Lack:
    """What a live worker lacks for a task; an able worker lacks nothing."""

    worker: Worker
    queue: bool
    task_type: bool
    capabilities: tuple[str, ...]
    slots: bool

    @classmethod
    def of(cls, worker: Worker, task: Requirements) -> Self:
        return cls(
            worker,
            queue=not worker.serves(task.queue),
            task_type=task.task_type not in worker.task_types,
            capabilities=tuple(name for name in task.capabilities if name not in worker.capabilities),
            slots=worker.concurrency < task.weight,
        )

    @property
    def count(self) -> int:
        return self.queue + self.task_type + len(self.capabilities) + self.slots

    def words(self) -> str:
        parts: list[str] = [sentence("does not serve the queue")] if self.queue else []
        parts += [sentence("does not know the task type")] if self.task_type else []
        parts += [sentence("lacks %(names)s", names=", ".join(self.capabilities))] if self.capabilities else []
        slots = sentence_n("has only %(n)s slot", "has only %(n)s slots", self.worker.concurrency)
        return all_of([*parts, slots] if self.slots else parts)


class Workforce:
    """The live workers that take new tasks, read once for the questions of many tasks."""

    def __init__(self) -> None:
        live = Worker.objects.using(alias()).filter(status=WorkerStatus.ACTIVE)
        self._workers = list(live[:MAX_WORKERS])
        self._taken: Mapping[Any, int] | None = None

    def why_not(self, task: Requirements, *, named: bool) -> Iterator[Reason]:
        """Yield why no live worker runs the task: none is able, or the able ones have no free slot.

        With ``named``, a sentence names the workers that come closest.
        """
        lacks = sorted((_Lack.of(worker, task) for worker in self._workers), key=lambda lack: lack.count)
        able = [lack.worker for lack in lacks if not lack.count]
        if not able:
            yield _none_able(task, lacks, named=named)
        elif (free := max(0, self._most_free(able))) < task.weight:
            taken = sentence_n(
                "All slots of the only worker that could run it are taken.",
                "All slots of the %(n)s workers that could run it are taken.",
                len(able),
            )
            text = "" if task.weight > 1 else taken
            details = {"weight": task.weight, "free": free, "workers": len(able)}
            yield reason("no_free_slot", text=text, slots=task.weight, free=free, details=details)

    def _most_free(self, workers: Sequence[Worker]) -> int:
        """Return the largest number of free slots in one of the workers, according to the rows."""
        if self._taken is None:
            executing = Task.objects.using(alias()).filter(status=Status.EXECUTING)
            executing = executing.filter(worker_id__in=[worker.id for worker in self._workers])
            self._taken = dict(executing.values_list("worker_id").annotate(total=Sum("weight")))
        return max(int(worker.concurrency) - self._taken.get(worker.id, 0) for worker in workers)


def _none_able(task: Requirements, lacks: Sequence[_Lack], *, named: bool) -> Reason:
    """Return the first requirement that no worker meets, and the workers that come closest."""
    if not lacks:
        return reason("no_worker")
    left, nearest, code = list(lacks), list(lacks), ""
    for code, part in LACKS.items():  # noqa: B007 - used after the loop
        nearest, left = left, [lack for lack in left if not getattr(lack, part)]
        if not left:
            break
    closest = sorted(lacks, key=lambda lack: (lack.count, lack not in nearest))[:NAMED] if named else []
    more = []
    if closest:
        nearby = [listed([lack.worker.name, lack.words()], " ") for lack in closest]
        more = [sentence("Closest: %(workers)s.", workers=listed(nearby, "; "))]
        more += [registry.why_unknown(task.task_type)] if code == "no_worker_knows_type" else []
        if code == "no_worker_with_capabilities" and (since := offered_until(task.capabilities)):
            more.append(sentence("No worker offers that since %(time)s.", time=moment(since)))
    details = {"closest": [{"worker": lack.worker.name, "lacks": lack.words()} for lack in closest]}
    names, needed = ", ".join(task.capabilities), ",".join(task.capabilities)
    return reason(code, *more, details=details, queue=task.queue, names=names, needed=needed, type=task.task_type,
                  slots=task.weight)  # fmt: skip


@dataclass(slots=True)
class WaitReason:
    """Queued tasks of one queue that wait for the same reason; ``kinds`` are some of them."""

    queue: str
    kind: Kind
    text: str
    remedy: str
    count: int
    oldest: datetime
    kinds: list[TaskKind] = field(default_factory=list)
    is_all: bool = False  # whether these are all tasks of the queue that were counted

    @property
    def is_severe(self) -> bool:
        """Whether only another worker or other code ends the wait."""
        return self.kind.level is Level.FAIL


def waits(queues: Iterable[str], *, has_index: bool = True) -> list[WaitReason]:
    """Return the reasons for which tasks of the queues wait, by the longest wait; from rows alone without an index."""
    names = list(queues)
    try:
        if not has_index or get_index().way == conf.ROWS:
            lanes = _lanes_of_rows(names)
        else:
            lanes = [lane for name in names for lane in islice(waiting_lanes(get_index(), name), MAX_LANES)]
    except IndexUnavailable:
        lanes = _lanes_of_rows(names)
    found: dict[tuple[str, str, str], WaitReason] = {}
    if lanes:
        causes = _Causes()
        for waiting in sorted(lanes, key=lambda each: each.oldest):
            for each in causes.of(waiting.lane):
                _add(found, waiting, each)
    total = Counter[str]()
    for waiting in lanes:
        total[waiting.lane.queue] += waiting.tasks
    for wait in found.values():
        wait.is_all = wait.count >= total[wait.queue]
    return sorted(found.values(), key=lambda wait: wait.oldest)


def _add(found: dict[tuple[str, str, str], WaitReason], waiting: WaitingLane, why: Reason) -> None:
    lane = waiting.lane
    key = (lane.queue, why.code, str(why.text))
    wait = found.get(key)
    if wait is None:
        wait = found[key] = WaitReason(lane.queue, why.kind, why.text, why.remedy, 0, waiting.oldest)
    wait.count += waiting.tasks
    kind = (lane.task_type, lane.capabilities, lane.key)
    if len(wait.kinds) < MAX_KINDS and kind not in wait.kinds:
        wait.kinds.append(kind)


def _lanes_of_rows(queues: Sequence[str]) -> list[WaitingLane]:
    queued = Task.objects.using(alias()).filter(status=Status.QUEUED, queue__in=queues)
    columns = ("queue", "task_type", "capabilities", "concurrency_key", "weight")
    grouped = queued.order_by().values_list(*columns).annotate(Count("id"), Min("queued_at"))
    return [
        WaitingLane(Lane(queue, task_type, tuple(capabilities), "", key, weight), count, oldest)
        for queue, task_type, capabilities, key, weight, count, oldest in grouped
    ]


class _Causes:
    """The reasons for lanes; workers, limits and running tasks are read once."""

    def __init__(self) -> None:
        self._now = timezone.now()
        self._workers = Workforce()
        self._limits = {(limit.scope, limit.name): limit for limit in Limit.objects.using(alias()).all()}
        self._active: Counter[tuple[str, str]] = Counter()
        self._able: dict[tuple[Any, ...], list[Reason]] = {}
        for running in rows.active() if self._limits else ():
            self._active[Scope.TYPE, running.task_type] += running.tasks
            self._active[Scope.KEY, running.key] += running.tasks

    def of(self, lane: Lane) -> Iterator[Reason]:
        """Yield what holds the tasks of a lane."""
        yield from self._of_limit(Scope.TYPE, lane.task_type)
        if lane.key:
            yield from self._of_limit(Scope.KEY, lane.key)
        demand = (lane.queue, lane.task_type, lane.capabilities, lane.weight)
        if demand not in self._able:
            self._able[demand] = list(self._workers.why_not(lane, named=True))
        yield from self._able[demand]

    def _of_limit(self, scope: Scope, name: str) -> Iterator[Reason]:
        limits = [self._limits[scope, one] for one in names_of(scope, name) if (scope, one) in self._limits]
        first = next((each for each in limits if each.cap is not None or each.rate_count), None)
        for limit in limits:
            counts = limit is first
            used = self._active[scope, name] if counts else 0
            yield from of_limit(subject(scope, name), limit, used, self._now, counts=counts)


def of_limit(
    what: str, limit: Limit | Queue | RuntimeSettings, used: int, now: datetime, *, counts: bool = True
) -> Iterator[Reason]:
    """Yield what a limit holds back, with ``used`` running tasks; cap and rate only if it ``counts``.

    Viewers in several time zones share the sentences, so they name no time of day.
    """
    if limit.paused:
        yield reason("paused", text=paused(what, limit, now=now))
    if counts and limit.cap is not None and used >= limit.cap:
        yield reason("limit_reached", what=what, used=used, most=limit.cap)
    if isinstance(limit, RuntimeSettings):
        return
    if limit.throttled_until is not None and limit.throttled_until > now:
        yield reason("throttled", text=throttled(what, limit.throttled_until, now))
    if counts and limit.rate_count and not limit.paused:
        rate = rate_words(limit.rate_count, limit.rate_seconds or 0)
        yield reason("rate_limited", text=sentence("%(what)s has a rate limit: %(rate)s.", what=what, rate=rate))


def wait_codes() -> list[str]:
    """Return the codes by which the task list can be filtered."""
    return [kind.code for kind in KINDS.values() if kind.is_counted]


def kinds_that_wait(code: str) -> list[tuple[str, str, tuple[str, ...], str]]:
    """Return the kinds of tasks, with their queues, that wait for a reason now."""
    names = list(Queue.objects.using(alias()).values_list("name", flat=True))
    return [(wait.queue, *kind) for wait in waits(names) if wait.kind.code == code for kind in wait.kinds]
