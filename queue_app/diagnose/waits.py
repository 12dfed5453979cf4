"""Why the queued tasks of each queue wait, counted by reason, the longest wait first.

The index has one lane for all tasks that the same workers can run, with its size and its oldest task; where keys or
users are limited, it tells the first ones apart. So the cost depends on the number of lanes, not of tasks. While Redis
is away, one query groups the rows.
The reasons are those of ``explain`` that limits, pauses and workers cause; what stops everything is not repeated.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from itertools import islice
from typing import Any, Final

from django.db.models import Count, Min
from django.utils import timezone

from queue_app.core.explanation import at_limit, because, by, subject
from queue_app.core.lanes import Lane
from queue_app.core.limit_values import Scope, names_of
from queue_app.core.sentence import sentence
from queue_app.core.states import Status
from queue_app.diagnose.ability import Workforce
from queue_app.exceptions import IndexUnavailable
from queue_app.index import get_index
from queue_app.index.server import WaitingLane, waiting_lanes
from queue_app.models import Limit, Queue, Task
from queue_app.sql import stats as rows
from queue_app.sql.database import alias

#: Maximum number of lanes per queue that are examined, and of kinds that one reason names.
MAX_LANES: Final = 5_000
MAX_KINDS: Final = 20
#: Codes of reasons that only another worker or other code can end.
SEVERE: Final = frozenset({
    "no_worker", "no_worker_for_queue", "no_worker_with_capabilities", "no_worker_knows_type", "too_heavy",
})  # fmt: skip

type Kind = tuple[str, tuple[str, ...], str]  # task type, capabilities, concurrency key


@dataclass(slots=True)
class WaitReason:
    """Queued tasks of one queue that wait for the same reason; ``kinds`` are some of them."""

    queue: str
    code: str
    text: str
    count: int
    oldest: datetime
    kinds: list[Kind] = field(default_factory=list)

    @property
    def is_severe(self) -> bool:
        """Whether only another worker or other code ends the wait."""
        return self.code in SEVERE


def waits(queues: Iterable[str]) -> list[WaitReason]:
    """Return the reasons for which tasks of the queues wait, by the longest wait."""
    names = list(queues)
    try:
        lanes = [lane for name in names for lane in islice(waiting_lanes(get_index(), name), MAX_LANES)]
    except IndexUnavailable:
        lanes = _lanes_of_rows(names)
    found: dict[tuple[str, str, str], WaitReason] = {}
    if lanes:
        causes = _Causes()
        for waiting in sorted(lanes, key=lambda each: each.oldest):
            for code, text in causes.of(waiting.lane):
                _add(found, waiting, code, text)
    return sorted(found.values(), key=lambda wait: wait.oldest)


def _add(found: dict[tuple[str, str, str], WaitReason], waiting: WaitingLane, code: str, text: str) -> None:
    lane = waiting.lane
    wait = found.get((lane.queue, code, text))
    if wait is None:
        wait = found[lane.queue, code, text] = WaitReason(lane.queue, code, text, 0, waiting.oldest)
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
        self._workers = Workforce()
        self._limits = {(limit.scope, limit.name): limit for limit in Limit.objects.using(alias()).all()}
        self._active: Counter[tuple[str, str]] = Counter()
        self._able: dict[tuple[Any, ...], list[tuple[str, str]]] = {}
        for running in rows.active() if self._limits else ():
            self._active[Scope.TYPE, running.task_type] += running.tasks
            self._active[Scope.KEY, running.key] += running.tasks

    def of(self, lane: Lane) -> Iterator[tuple[str, str]]:
        """Yield (code, sentence) of what holds the tasks of a lane."""
        yield from self._of_limit(Scope.TYPE, lane.task_type)
        if lane.key:
            yield from self._of_limit(Scope.KEY, lane.key)
        demand = (lane.queue, lane.task_type, lane.capabilities, lane.weight)
        if demand not in self._able:
            reasons = self._workers.why_not(lane, named=True)
            self._able[demand] = [(reason.code, reason.text) for reason in reasons]
        yield from self._able[demand]

    def _of_limit(self, scope: Scope, name: str) -> Iterator[tuple[str, str]]:
        what = subject(scope, name)
        limits = [self._limits[scope, one] for one in names_of(scope, name) if (scope, one) in self._limits]
        for limit in limits:
            if limit.paused:
                why = because(limit.paused_reason)
                yield "paused", sentence("%(what)s is paused%(by)s%(why)s", what=what, by=by(limit.paused_by), why=why)
            if limit.throttled_until is not None and limit.throttled_until > timezone.now():
                yield "throttled", sentence("%(what)s is throttled: its code asked to slow down.", what=what)
        first = next((each for each in limits if each.cap is not None or each.rate_count), None)
        if first is not None and first.cap is not None:
            used = self._active[scope, name]
            if used >= first.cap:
                yield "limit_reached", at_limit(what, used, first.cap)
        if first is not None and first.rate_count:
            yield "rate_limited", sentence(
                "%(what)s has a rate limit: %(count)s per %(seconds)s s.",
                what=what, count=first.rate_count, seconds=float(first.rate_seconds or 0),
            )  # fmt: skip


def kinds_that_wait(code: str) -> list[tuple[str, str, tuple[str, ...], str]]:
    """Return the kinds of tasks, with their queues, that wait for a reason now."""
    names = list(Queue.objects.using(alias()).values_list("name", flat=True))
    return [(wait.queue, *kind) for wait in waits(names) if wait.code == code for kind in wait.kinds]
