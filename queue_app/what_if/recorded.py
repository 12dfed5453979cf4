"""Make a plan of a recorded window: its tasks and workers, under the limits that are in force now."""

import heapq
import uuid
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from statistics import median
from typing import Final

from django.utils import timezone

from queue_app import conf
from queue_app.core.sentence import duration, sentence
from queue_app.exceptions import SimulationRefused
from queue_app.models import PriorityPolicy, Worker
from queue_app.sql import snapshot
from queue_app.sql.database import alias
from queue_app.what_if import sql as rows
from queue_app.what_if.plan import HIDDEN, MAX_TASKS, NEVER, SECOND, Crew, Load, Plan, TaskKind

MAX_WINDOW: Final = timedelta(days=31)
#: Number of tasks after which the reader reports.
REPORT: Final = 10_000
#: The time between two tasks of a slot is measured by this number of tasks at the most, and of gaps at the least. A
#: longer gap (µs) has another cause, such as a limit.
MAX_TURNS: Final = 100_000
ENOUGH_TURNS: Final = 20
LONGEST_TURN: Final = SECOND
#: Utilisation from which recorded waits were those for workers.
WORKER_BOUND: Final = 0.95

type _Abilities = tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]


@dataclass(frozen=True, slots=True)
class Recording:
    """A plan of a window, and what must be known to trust it."""

    plan: Plan
    notes: tuple[str, ...]


def check_window(since: datetime, until: datetime) -> None:
    """Raise ``SimulationRefused`` for a window that is reversed, too long or in the future."""
    if not since < until <= timezone.now() + timedelta(minutes=1) or until - since > MAX_WINDOW:
        raise SimulationRefused("The window must begin before it ends, lie in the past, and last at most 31 days.")


def record(  # noqa: C901 - one case for each fate of a task
    since: datetime, until: datetime, report: Callable[[float], None] = lambda _: None
) -> Recording:
    """Read a window; raise ``SimulationRefused`` for one that is empty, reversed, too long or in the future.

    ``report`` is called now and then with the share that was read; it may raise an error to cancel.
    """
    check_window(since, until)
    if rows.are_more(since, until, MAX_TASKS):
        raise SimulationRefused(f"The window has more than {MAX_TASKS:,} tasks: choose a shorter one.")
    load, unknown, times, withdrawn = Load(), [], defaultdict(list), 0
    spans: dict[uuid.UUID, list[tuple[int, int, TaskKind]]] = defaultdict(list)
    turns: dict[uuid.UUID, list[tuple[int, int, int]]] = defaultdict(list)
    workers = Worker.objects.using(alias()).filter(started_at__lt=until).exclude(stopped_at__lt=since)
    known = {worker.id: worker for worker in workers}
    for number, task in enumerate(rows.tasks(since, until)):
        if number % REPORT == 0 and task.finished_at:
            report(min(1.0, (task.finished_at / SECOND - since.timestamp()) / (until - since).total_seconds()))
        kind, queued_at = TaskKind(*task.kind), task.queued_at or 0
        if task.status == "queued":
            unknown.append((kind, queued_at))
        elif task.started_at is None:
            withdrawn += 1  # cancelled or expired before its start
        elif task.finished_at is None:
            unknown.append((kind, queued_at))
        else:
            runs = task.finished_at - task.started_at
            load.add(kind, queued_at, runs, max(0, task.started_at - queued_at))
            times[kind.task_type].append(runs)
            if task.worker_id and task.worker_id not in known:
                spans[task.worker_id].append((task.started_at, task.finished_at, kind))
            elif task.worker_id and number < MAX_TURNS and kind.weight == 1:
                turns[task.worker_id].append((task.started_at, task.finished_at, queued_at))
    for attempt, started_at, finished_at in rows.failed_attempts(since, until):
        load.add(TaskKind(*attempt), started_at, finished_at - started_at, HIDDEN)
    if not times:
        raise SimulationRefused("No task ended in this window: choose a longer or later one, or write a scenario.")
    for kind, queued_at in unknown:  # they took their slots, or stood in the way; how long they run is not known
        load.add(kind, queued_at, round(median(times[kind.task_type] or [SECOND])), HIDDEN)
    load.turnaround = _turnaround(turns, {worker.id: worker.concurrency for worker in known.values()})
    begin, end = (round(at.timestamp() * SECOND) for at in (since, until))
    plan = Plan(
        load=load,
        crews=_crews(_of_rows(known.values(), begin, end), _inferred(spans)),
        limits=snapshot.limits(),
        thresholds=PriorityPolicy.thresholds(alias()),
        begin=begin,
        end=end,
    )
    return Recording(
        plan, tuple(_notes(plan, since, until, withdrawn=withdrawn, unknown=len(unknown), gone=len(spans)))
    )


def _turnaround(ran: dict[uuid.UUID, list[tuple[int, int, int]]], slots: dict[uuid.UUID, int]) -> int:
    """Return how long (µs) a slot usually stands idle before a task that waited for it: reports and claims take time.

    ``ran`` has (start, end, time of its queueing) of the tasks of each worker.
    """
    gaps = []
    for worker, spans in ran.items():
        free = [NEVER] * slots[worker]
        for start, end, queued_at in sorted(spans):
            freed = heapq.heapreplace(free, end)
            if max(freed, start - LONGEST_TURN) == freed >= queued_at:
                gaps.append(start - freed)
    return max(0, round(median(gaps))) if len(gaps) >= ENOUGH_TURNS else 0


def _of_rows(workers: Iterable[Worker], begin: int, end: int) -> Iterable[tuple[_Abilities, int, int, int]]:
    for worker in workers:
        came = max(begin, round(worker.started_at.timestamp() * SECOND))
        left = round(worker.stopped_at.timestamp() * SECOND) if worker.stopped_at else end * 2
        yield (
            (_names(worker.queues), _names(worker.task_types), _names(worker.capabilities)),
            came,
            left,
            worker.concurrency,
        )


def _inferred(spans: dict[uuid.UUID, list[tuple[int, int, TaskKind]]]) -> Iterable[tuple[_Abilities, int, int, int]]:
    """Yield workers whose rows were purged: as many slots as they once used, for the tasks that they ran."""
    for ran in spans.values():
        edges = sorted([(start, kind.weight) for start, _, kind in ran] + [(end, -kind.weight) for _, end, kind in ran])
        used = most = 0
        for _, slots in edges:
            used += slots
            most = max(most, used)
        kinds = {kind for _, _, kind in ran}
        types = _names(kind.task_type for kind in kinds)
        offers = _names(name for kind in kinds for name in kind.capabilities)
        yield ((), types, offers), min(start for start, _, _ in ran), max(end for _, end, _ in ran), max(1, most)


def _crews(*workers: Iterable[tuple[_Abilities, int, int, int]]) -> tuple[Crew, ...]:
    changes: dict[_Abilities, list[tuple[int, int]]] = defaultdict(list)
    for some in workers:
        for abilities, came, left, slots in some:
            changes[abilities] += [(came, slots), (left, -slots)]
    return tuple(Crew(*abilities, tuple(sorted(each))) for abilities, each in changes.items())


def _names(names: Iterable[str]) -> tuple[str, ...]:
    return tuple(sorted(set(names)))


def _notes(  # noqa: PLR0913 - what was counted
    plan: Plan, since: datetime, until: datetime, *, withdrawn: int, unknown: int, gone: int
) -> Iterable[str]:
    retention = conf.get().retention
    if since < timezone.now() - timedelta(seconds=min(retention.success_seconds, retention.failure_seconds)):
        yield sentence("The window begins before the retention of ended tasks: some were purged and are missing.")
    if gone:
        yield sentence(
            "The rows of %(n)s workers were purged: their slots are inferred from the tasks that they ran.", n=gone
        )
    if edits := rows.edits(since, until):
        yield sentence(
            "Limits and policies were edited in the window (edits: %(n)s): the simulation uses those of now.", n=edits
        )
    for away_since, back_at in rows.outages(since, until):
        yield sentence(
            "No scheduler ran from %(since)s to %(back)s UTC (no snapshots): retries and delayed tasks waited for it."
            " The simulation keeps the times at which they were queued.",
            since=f"{away_since:%Y-%m-%d %H:%M}", back=f"{back_at:%H:%M}",
        )  # fmt: skip
    if withdrawn:
        yield sentence("Tasks that were cancelled or expired before their start (%(n)s) are left out.", n=withdrawn)
    if unknown:
        yield sentence("Tasks that have not ended (%(n)s) run as long as the median of their type.", n=unknown)
    load = plan.load
    if load.turnaround:
        turn = duration(load.turnaround / SECOND)
        yield sentence("A slot takes %(time)s from one task to the next: each run is that much longer.", time=turn)
    ran = sum(load.runs)
    slots = sum(
        max(0, min(at_end, plan.end) - max(at, plan.begin)) * n
        for crew in plan.crews for (at, n), at_end in _periods(crew, plan.end)
    )  # fmt: skip
    if slots and ran / slots > WORKER_BOUND:
        yield sentence(
            "Workers were busy for %(share)s of the window: most waits were waits for a slot.",
            share=f"{min(1, ran / slots):.0%}",
        )


def _periods(crew: Crew, end: int) -> Iterable[tuple[tuple[int, int], int]]:
    """Yield ((time, slots), time of the next change) of a crew."""
    slots = 0
    for (at, change), following in zip(crew.changes, [*(at for at, _ in crew.changes[1:]), end], strict=True):
        slots += change
        yield (at, slots), following
