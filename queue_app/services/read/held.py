"""Count the tasks behind limits, and find fixed limits that hold tasks back while slots of their workers are idle.

For some of these, simulations have tried another value (``simulate.operation``).
"""

import uuid
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from math import ceil
from typing import Final

from django.utils import timezone

from queue_app.core.limits import Scope
from queue_app.models import Limit, Operation, Queue, Worker
from queue_app.models.limits import HAS_OWN
from queue_app.models.operation import OperationKind, OperationState
from queue_app.models.worker import WorkerStatus
from queue_app.sql import adaptive
from queue_app.sql.database import alias

#: Period of the snapshots, and the smallest number of them that allows a judgement.
PERIOD: Final = timedelta(minutes=30)
ENOUGH: Final = 10
#: A limit is judged if it held tasks back in this share of the snapshots, or this share of it was in use, and the
#: oldest task waited this long (s).
OFTEN: Final = 0.8
LONG: Final = 120.0
#: Time for which a trial is valid.
VALID: Final = 4 * PERIOD
#: A trial helps if the wait of 95 % falls to this share of itself.
HELPS: Final = 0.8


@dataclass(frozen=True, slots=True)
class HeldBack:
    """A limit, the tasks that it holds back, and the value that the arriving and waiting tasks need."""

    scope: Scope
    name: str
    cap: int
    waiting: float
    oldest: float
    idle: int
    wanted: int

    @property
    def limit(self) -> str:
        """Its name as commands and scenarios write it."""
        return f"{self.scope}:{self.name}"


@dataclass(frozen=True, slots=True)
class Behind:
    """The tasks that have waited longest behind a limit of a type, a key or a family.

    ``fullest`` is the number of running tasks that count together: those of the type, or of one key of a family.
    """

    running: int
    fullest: int
    waiting: int
    oldest: float | None  # seconds
    is_least: bool  # more tasks may wait than were read


def behind(limits: Iterable[Limit]) -> list[Behind]:
    """Return the running and waiting tasks of each limit, by the rows."""
    limits, own = list(limits), _with_own_limits()
    running, waits = adaptive.running_by_kind(), adaptive.waiting_by_kind()
    is_least = sum(count for count, _ in waits.values()) >= adaptive.MAX_READ
    return [_behind(_names(limit, own), running, waits, is_least=is_least) for limit in limits]


def _behind(
    name_of: Callable[[str, str], str],
    running: dict[tuple[str, str], int],
    waits: dict[tuple[str, str], tuple[float, float]],
    *,
    is_least: bool,
) -> Behind:
    together: Counter[str] = Counter()
    for kind, count in running.items():
        if name := name_of(*kind):
            together[name] += count
    waiting = [found for kind, found in waits.items() if name_of(*kind)]
    return Behind(
        together.total(),
        max(together.values(), default=0),
        round(sum(count for count, _ in waiting)),
        max((age for _, age in waiting), default=None),
        is_least,
    )


def held() -> list[HeldBack]:
    """Return the limits of queues, types and keys that hold tasks back, those with the longest waits first."""
    workers = list(Worker.objects.using(alias()).filter(status=WorkerStatus.ACTIVE))
    found = [*_queues(workers), *_types_and_keys(workers)] if any(worker.free_slots for worker in workers) else []
    return sorted((each for each in found if each.wanted > each.cap), key=lambda each: (-each.oldest, each.limit))


def _queues(workers: list[Worker]) -> Iterator[HeldBack]:
    some = [
        seen
        for seen in adaptive.capped(timezone.now() - PERIOD)
        if seen.snapshots >= ENOUGH and seen.at_limit >= OFTEN * seen.snapshots and (seen.oldest or 0) >= LONG
    ]
    fixed = Queue.objects.using(alias()).filter(adaptive="", paused=False) if some else []
    caps = {queue.name: queue.max_concurrent for queue in fixed}
    for seen in some:
        cap = caps.get(seen.queue)
        idle = sum(worker.free_slots for worker in workers if worker.serves(seen.queue))
        if cap is None or idle <= 0 or seen.ended <= 0:
            continue
        each = seen.active / seen.ended  # slots that one ended task took, in periods
        wanted = min(cap + idle, ceil(each * (seen.enqueued + seen.waiting)))
        yield HeldBack(Scope.QUEUE, seen.queue, cap, seen.waiting, seen.oldest or 0.0, idle, wanted)


def _types_and_keys(workers: list[Worker]) -> Iterator[HeldBack]:
    """Judge by the rows, as no snapshot counts types and keys."""
    limits = list(Limit.objects.using(alias()).filter(max_concurrent__isnull=False, adaptive="", paused=False))
    if not limits or not (waits := adaptive.waiting_by_kind()):
        return
    ran = adaptive.ran_by_kind(timezone.now() - PERIOD)
    own = _with_own_limits()
    for limit in limits:
        cap, name_of = limit.max_concurrent or 0, _names(limit, own)
        waiting: Counter[str] = Counter()  # by type or key: each key of a family has a count of its own
        oldest, busy, ended = (defaultdict[str, float](float) for _ in range(3))
        types = set()
        for kind, (count, age) in waits.items():
            if name := name_of(*kind):
                waiting[name] += round(count)
                oldest[name] = max(oldest[name], age)
                types.add(kind[0])
        if not waiting:
            continue
        [(name, count)] = waiting.most_common(1)
        for kind, (slots, tasks) in ran.items():
            if name_of(*kind) == name:
                busy[name] += slots
                ended[name] += tasks
        idle = sum(worker.free_slots for worker in workers if types & set(worker.task_types))
        if idle > 0 and ended[name] and busy[name] >= OFTEN * cap and oldest[name] >= LONG:
            wanted = min(cap + idle, ceil(busy[name] / ended[name] * (ended[name] + count)))
            yield HeldBack(Scope(limit.scope), limit.name, cap, count, oldest[name], idle, wanted)


def _with_own_limits() -> set[str]:
    """Return the keys for which the limit of their family does not hold."""
    return set(Limit.objects.using(alias()).filter(HAS_OWN, scope=Scope.KEY).values_list("name", flat=True))


def _names(limit: Limit, own: set[str]) -> Callable[[str, str], str]:
    """Return a function of type and key: the one that counts behind the limit, or "" if it does not hold for them."""
    if limit.scope == Scope.TYPE:
        return lambda task_type, _key: task_type if task_type == limit.name else ""
    family = f"{limit.name}:" if ":" not in limit.name else limit.name

    def of_key(_task_type: str, key: str) -> str:
        return key if key == limit.name or (key.startswith(family) and key not in own) else ""

    return of_key


@dataclass(frozen=True, slots=True)
class Trial:
    """What the simulation of a limit with another value found; waits of 95 % of its tasks in seconds."""

    operation: uuid.UUID
    value: int
    before: float
    after: float
    agrees: bool  # whether the simulation with the present value agrees with what happened

    @property
    def helps(self) -> bool:
        """Return whether the other value makes waits clearly shorter."""
        return self.after <= HELPS * self.before


def mark(each: HeldBack) -> str:
    """Return the text that identifies a trial: the limit and its present value."""
    return f"{each.limit}={each.cap}"


def operations() -> dict[str, Operation]:
    """Return the newest valid trials, by mark."""
    recent = Operation.objects.using(alias()).filter(kind=OperationKind.SIMULATE, filter__has_key="trial")
    return {each.filter["trial"]: each for each in recent.filter(created_at__gte=timezone.now() - VALID).order_by("id")}


def trials_of(some: Sequence[HeldBack]) -> dict[str, Trial]:
    """Return {limit: trial} of the limits that a simulation has tried from their present value."""
    if not some:
        return {}
    found: dict[str, Trial] = {}
    known = operations()
    for each in some:
        operation = known.get(mark(each))
        if operation is None or operation.state != OperationState.DONE:
            continue
        answer = operation.result or {}
        waits = [answer[run]["waits"].get("limit", {}).get(each.limit) for run in ("unchanged", "changed")]
        if all(waits):
            value = operation.arguments["limits"][each.limit]["max_concurrent"]
            found[each.limit] = Trial(
                operation.pk, value, waits[0]["p95"], waits[1]["p95"], bool(answer["calibration"]["agrees"])
            )
    return found
