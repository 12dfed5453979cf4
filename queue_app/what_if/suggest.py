"""Suggest other limits and priorities: from statistics, and from simulations that tried another value.

``held`` finds the fixed limits that hold tasks back while slots of their workers are idle; ``operation.request_trial``
lets a simulation try another value. A queue that is idle, or works through its backlog, gets no suggestion.
"""

import uuid
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from math import ceil
from typing import Final

from django.utils import timezone

from queue_app.core.limits import Scope
from queue_app.core.sentence import joined, sentence
from queue_app.models import Limit, Operation, Queue, Worker
from queue_app.models.operation import OperationKind, OperationState
from queue_app.models.worker import WorkerStatus
from queue_app.services.control.advice import Advice
from queue_app.services.read.behind import counted_by, with_own_limits
from queue_app.sql import stats
from queue_app.sql.database import alias
from queue_app.what_if import sql as rows
from queue_app.what_if.plan import span

#: Period of the snapshots, and the smallest number of them that allows a judgement.
PERIOD: Final = timedelta(minutes=30)
ENOUGH: Final = 10
#: A limit is judged if it held tasks back in this share of the snapshots, or this share of it was in use, and the
#: oldest task waited this long (s).
OFTEN: Final = 0.8
LONG: Final = 120.0
#: Bands order nothing if at least this many tasks wait on average, and one band has this share of them.
MANY_WAITING: Final = 20.0
MOST_OF_THEM: Final = 0.6
MAX_LIMITS: Final = 20
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


def held() -> list[HeldBack]:
    """Return the limits of queues, types and keys that hold tasks back, those with the longest waits first."""
    workers = list(Worker.objects.using(alias()).filter(status=WorkerStatus.ACTIVE))
    found = [*_queues(workers), *_types_and_keys(workers)] if any(worker.free_slots for worker in workers) else []
    return sorted((each for each in found if each.wanted > each.cap), key=lambda each: (-each.oldest, each.limit))


def _queues(workers: list[Worker]) -> Iterator[HeldBack]:
    some = [
        seen
        for seen in rows.capped(timezone.now() - PERIOD)
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
    if not limits or not (waits := stats.waiting_by_kind()):
        return
    ran = rows.ran_by_kind(timezone.now() - PERIOD)
    own = with_own_limits()
    for limit in limits:
        cap, name_of = limit.max_concurrent or 0, counted_by(limit, own)
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
        runs = [answer.get(run, {}).get("waits", {}) for run in ("actual", "predicted")]
        waits = [run.get("limit", {}).get(each.limit) for run in runs]
        if all(waits):
            value = operation.arguments["limits"][each.limit]["max_concurrent"]
            found[each.limit] = Trial(
                operation.pk, value, waits[0]["p95"], waits[1]["p95"], bool(answer["calibration"]["agrees"])
            )
    return found


def of_limits() -> Iterator[Advice]:
    """Suggest higher limits where tasks wait while slots are idle, with the waits that a simulation found, if any."""
    some = held()
    trials = trials_of(some)
    for each in some[:MAX_LIMITS]:
        name = each.name if each.scope == Scope.QUEUE else f"{each.scope} {each.name}"
        text = sentence(
            "%(name)s: the limit %(cap)s holds %(tasks)s tasks, the oldest for %(time)s, while %(idle)s slots are"
            " idle.",
            name=name, cap=each.cap, tasks=round(each.waiting), time=span(each.oldest), idle=each.idle,
        )  # fmt: skip
        trial = trials.get(each.limit)
        if trial is None:
            needs = sentence(
                "The tasks of the last %(minutes)s minutes and those that wait need %(wanted)s.",
                minutes=PERIOD.seconds // 60, wanted=each.wanted,
            )  # fmt: skip
            text = joined(text, needs)
            command = f"taskqueue simulate --last 1h --set {each.limit}.max_concurrent={each.wanted}"
            hint = sentence("Try it: %(command)s.", command=command)
        elif not trial.helps:
            continue
        else:
            names = {"before": span(trial.before), "after": span(trial.after)}
            found = sentence(
                "%(value)s would bring the wait of 95 %% from %(before)s to %(after)s, says the simulation of the last"
                " hour.",
                value=trial.value, **names,
            )  # fmt: skip
            text = joined(text, found, "" if trial.agrees else sentence("The simulation differs from what happened."))
            hint = sentence("Operation %(id)s shows it, and can apply it.", id=str(trial.operation))
        hint = joined(hint, sentence("Raise it only if the systems that the tasks use can bear the load."))
        yield Advice(f"limit:{each.limit if each.scope != Scope.QUEUE else each.name}:{each.cap}", text, hint,
                     each.name if each.scope == Scope.QUEUE else "")  # fmt: skip


def of_bands() -> Iterator[Advice]:
    """Suggest lower priorities if most waiting tasks are urgent, so that the bands above normal order nothing."""
    found = rows.waiting_by_band(timezone.now() - PERIOD)
    snapshots = max((number for _, number in found.values()), default=0)
    total = sum(number for number, _ in found.values())
    if snapshots < ENOUGH or total / snapshots < MANY_WAITING:
        return
    for band in ("critical", "high"):
        share = found.get(band, (0, 0))[0] / total
        if share >= MOST_OF_THEM:
            text = sentence(
                "The band %(band)s holds %(share)s of the waiting tasks (%(tasks)s on average): they wait for each"
                " other.",
                band=band, share=f"{share:.0%}", tasks=round(total / snapshots),
            )  # fmt: skip
            hint = sentence("Give what can wait a lower priority, or add workers.")
            yield Advice(f"band:{band}", text, hint)
