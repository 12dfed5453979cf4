"""Redis is gone, full, frozen, or comes and goes: claims read the rows meanwhile, and every kind of limit holds.

What runs is counted by what the functions write, not by rows or leases. Work and free slots are there all the time.
"""

from __future__ import annotations

import itertools
import os
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final, Self

from django.db import DatabaseError, connection
from django.db.models import Count

from queue_app.core.priorities import Band
from queue_app.core.records import NewTask
from queue_app.models import Limit, Queue, RuntimeSettings, Task, Worker
from queue_app.registry import type_of
from queue_app.services.control.queues import copy_limit
from queue_app.services.enqueue.store import enqueue_many
from queue_app.services.notify import index as notify
from queue_app.services.repair.rebuild import rebuild
from queue_app.sql import snapshot
from queue_app.sql.snapshot import Way
from tests.integration.app import tasks
from tests.integration.faults.edits import over_rate
from tests.integration.faults.run import CAPS, HEARTBEAT, PATIENCE, Run
from tests.integration.faults.starts import leads, start
from tests.integration.faults.timing import uncapped
from tests.integration.processes import lines
from tests.support.waiting import turns, until

#: How long Redis is away, and how long it may take until claims use it again (s).
AWAY_SECONDS: Final = 20.0
RETURN_SECONDS: Final = 15.0
#: The longest time without the end of a task, from the moment at which Redis goes until claims use it again (s).
STANDSTILL_SECONDS: Final = 2.0
FLAP_STANDSTILL_SECONDS: Final = 1.0
FLAP_SECONDS: Final = 2.0
#: The same as tests allow, which share the machine with others.
SHORT_STANDSTILL_SECONDS: Final = 10.0
#: Tasks of a measurement of speed.
SPEED_TASKS: Final = 10_000
#: Where no Redis listens.
CLOSED: Final = "redis://127.0.0.1:1/0"
#: Waiting tasks that the load keeps, by queue and key.
DEPTH: Final = {
    ("default", ""): 120, ("default", "one"): 30, ("default", "family:a"): 20, ("default", "family:b"): 20,
    ("default", "slow"): 5, ("other", ""): 30,
}  # fmt: skip
#: Kind -> cap. Slots of one user in the queue ``default``, of a key, of each key of a family, of the type ``job``.
USER, KEY, FAMILY, TYPE = 2, 2, 1, 6
#: Starts of the queue ``other`` in a second, and how many at once; time between starts of the key ``slow`` (s).
RATE, BURST, DELAY = 20, 2, 0.5
#: By how much a start may come later than its claim: the share of a period.
LATE: Final = 0.5
PAUSED: Final = "paused"


# -- limits and load ---------------------------------------------------------------------


def limit() -> None:
    """Put every kind of limit in force, beside the caps of all runs."""
    default, other = Queue.objects.get(pk="default"), Queue.objects.get(pk="other")
    default.max_concurrent_per_user, default.order = USER, "fair"
    default.save()
    other.rate_count, other.rate_seconds, other.rate_burst = RATE, 1.0, BURST
    other.save()
    Queue.objects.update_or_create(pk=PAUSED, defaults={"paused": True, "paused_at": datetime.now().astimezone()})
    for scope, name, values in (
        ("type", type_of(tasks.job), {"max_concurrent": TYPE}),
        ("key", "one", {"max_concurrent": KEY}),
        ("key", "family", {"max_concurrent": FAMILY}),
        ("key", "slow", {"min_delay_seconds": DELAY}),
    ):
        copy_limit(Limit.objects.create(scope=scope, name=name, **values))


class Load:
    """Tasks of every kind, enqueued by one thread as long as the run is disturbed."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.paused: list[uuid.UUID] = []
        self.slowest, self.errors = 0.0, 0

    def top_up(self) -> None:
        """Enqueue until ``DEPTH`` tasks wait."""
        found = Task.objects.filter(status="queued").values_list("queue", "concurrency_key").annotate(count=Count("*"))
        waiting = {(queue, key): count for queue, key, count in found}
        new = [self._new(*kind) for kind, count in DEPTH.items() for _ in range(count - waiting.get(kind, 0))]
        if new:
            self.enqueue(new)

    def last(self, seconds: float) -> None:
        """Keep tasks waiting for so long."""
        for _ in turns(seconds, pause=0.1):
            self.top_up()

    def enqueue(self, new: list[NewTask]) -> None:
        """Enqueue them, and measure how long that takes."""
        began = time.monotonic()
        try:
            stored = enqueue_many(new)
        except Exception as error:  # noqa: BLE001 - what the caller would see
            self.errors += 1
            print(f"enqueue: {error!r}")
            return
        self.slowest = max(self.slowest, time.monotonic() - began)
        self.run.order += [(each.id, task.queue, task.priority) for task, each in zip(new, stored, strict=True)]

    def pause_some(self) -> None:
        """Enqueue tasks in the queue that is paused."""
        new = [self._new(PAUSED) for _ in range(5)]
        self.paused = [each.id for each in enqueue_many(new)]

    def _new(self, queue: str, key: str = "") -> NewTask:
        chance = self.run.chance
        user = chance.choice(["ina", "ben", "kim", "lea"])
        text = f"{uuid.uuid4().hex}|{queue}|{user}|{key}"
        return NewTask(
            task_type=type_of(tasks.job), args=[self.run.log, text, round(chance.uniform(0.005, 0.05), 4)], queue=queue,
            priority=chance.choice(list(Band)), user=user, concurrency_key=key, weight=chance.choice([1, 1, 1, 2]),
        )  # fmt: skip


# -- the way ----------------------------------------------------------------------------


class Ways:
    """Which way was in force, and since when, as a thread saw it."""

    def __init__(self) -> None:
        self.seen: list[tuple[datetime, Way]] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Self:
        self._look()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(10)

    @property
    def is_rows(self) -> bool:
        """Whether claims read the rows now."""
        return self.seen[-1][1].is_rows

    @property
    def changes(self) -> list[tuple[datetime, bool]]:
        """When the way changed, and whether to the rows."""
        pairs = itertools.pairwise(self.seen)
        return [(at, way.is_rows) for (_, before), (at, way) in pairs if way.is_rows != before.is_rows]

    def started(self) -> int:
        """Return how many tasks were started from the rows."""
        changes, count = self.changes, 0
        for number, (at, is_rows) in enumerate(changes):
            if is_rows:
                found = Task.objects.filter(started_at__gte=at)
                later = changes[number + 1 :]
                count += (found.filter(started_at__lt=later[0][0]) if later else found).count()
        return count

    def _look(self) -> None:
        found = snapshot.way()
        if not self.seen or self.seen[-1][1].is_rows != found.is_rows:
            self.seen.append((found.since or datetime.now().astimezone(), found))

    def _run(self) -> None:
        while not self._stop.wait(0.02):
            try:
                self._look()
            except DatabaseError:
                connection.close()
        connection.close()


# -- faults ------------------------------------------------------------------------------


@contextmanager
def gone(run: Run) -> Iterator[None]:
    """Kill Valkey, and start it again, empty."""
    run.arena.kill_valkey()
    try:
        yield
    finally:
        run.arena.start_valkey()


@contextmanager
def full(run: Run) -> Iterator[None]:
    """Let Valkey refuse all writes: it has reached its maximum memory, and evicts nothing."""
    run.arena.limit_memory(1)
    try:
        yield
    finally:
        run.arena.limit_memory(0)


@contextmanager
def frozen(run: Run) -> Iterator[None]:
    """Let Valkey keep its connections and answer nothing."""
    with run.arena.stopped(run.arena.valkey):
        yield


type Away = Callable[[Run], AbstractContextManager[None]]


def redis_gone(run: Run) -> None:
    """Redis is gone for 20 s under every kind of limit."""
    _detour(run, gone)


def redis_gone_for_a_moment(run: Run) -> None:
    """Redis is gone for 5 s, in the short form."""
    _detour(run, gone, seconds=5, most=SHORT_STANDSTILL_SECONDS)


def redis_full(run: Run) -> None:
    """Redis refuses writes for 20 s under every kind of limit."""
    _detour(run, full)


def redis_frozen(run: Run) -> None:
    """Redis answers nothing for 20 s under every kind of limit."""
    _detour(run, frozen)


def redis_flaps(run: Run) -> None:
    """Redis is away and back every 2 s for a minute under every kind of limit."""
    _detour(run, gone, flaps=15, seconds=FLAP_SECONDS, most=FLAP_STANDSTILL_SECONDS)


def redis_gone_for_one_worker(run: Run) -> None:
    """Redis is gone, without a scheduler, for the only worker, which has nobody to ask."""
    _detour(run, gone, begin=_one_worker)


def redis_frozen_for_two_workers(run: Run) -> None:
    """Redis answers nothing, without a scheduler, to two workers, which confirm it to each other."""
    _detour(run, frozen, begin=_two_workers)


def redis_closed_to_one_worker(run: Run) -> None:
    """One worker alone cannot reach Redis: it stands by, and the others go on in Redis."""
    run.judges_caps = False
    limit()
    load = Load(run)
    load.top_up()
    start(run)
    apart = run.fleet.worker("--concurrency", "4", heartbeat=HEARTBEAT, REDIS_URL=CLOSED)
    until(lambda: Worker.objects.filter(pid=apart.pid).exists(), "it has registered", PATIENCE)
    with Ways() as ways:
        load.last(AWAY_SECONDS)
        run.broken += ["the way changed"] if ways.changes or ways.is_rows else []
    mine = Task.objects.filter(worker_id__in=Worker.objects.filter(pid=apart.pid).values("id"))
    run.broken += [] if apart.alive else ["it has ended, instead of standing by"]
    run.broken += ["it has started tasks"] if mine.exists() else []
    run.broken += overlaps(run.log)


def speed_without_limits(run: Run) -> None:
    """Claims read the rows, and nothing limits them"""
    _speed(run, "no limits")


def speed_under_ten_limits(run: Run) -> None:
    """Claims read the rows under ten limits, none of which is reached"""
    for name in ("default", "other"):
        far = {"max_concurrent": 500, "max_concurrent_per_user": 400, "rate_count": 100_000, "rate_seconds": 1.0}
        Queue.objects.filter(pk=name).update(**far)
    for scope, name in (("type", type_of(tasks.add)), ("key", "one"), ("key", "family")):
        copy_limit(Limit.objects.create(scope=scope, name=name, max_concurrent=300))
    RuntimeSettings.objects.update(max_concurrent=1000)
    _speed(run, "ten limits", concurrency_key="family:a", user="ina")


def _speed(run: Run, name: str, **options: str) -> None:
    """Measure how many tasks end in a second while claims read the rows; two workers have two cores."""
    run.judges_caps = False
    if not options:
        uncapped()
    rebuild()
    new = NewTask(task_type=type_of(tasks.add), args=[1, 2], queue="default", **options)
    for _ in range(SPEED_TASKS // 1000):
        run.order += [(stored.id, "default", Band.NORMAL) for stored in enqueue_many([new] * 1000)]
    run.fleet.scheduler()
    run.arena.kill_valkey()
    for _ in range(2):
        run.fleet.worker("--concurrency", "8", heartbeat=HEARTBEAT)
    until(lambda: run.ended() > SPEED_TASKS / 10, "tasks end", PATIENCE)
    ended, began = run.ended(), time.monotonic()
    until(lambda: run.ended() > SPEED_TASKS * 0.9, "tasks end", PATIENCE)
    run.measured[f"tasks a second from rows, {name}"] = (run.ended() - ended) / (time.monotonic() - began)
    run.measured["load of the machine"] = os.getloadavg()[0]
    run.broken += [] if snapshot.way().is_rows else ["claims do not read the rows"]
    run.arena.start_valkey()
    notify.breaker.reset()


def _start(run: Run) -> None:
    start(run)


def _one_worker(run: Run) -> None:
    run.fleet.worker("--concurrency", "8", heartbeat=HEARTBEAT)


def _two_workers(run: Run) -> None:
    for _ in range(2):
        run.fleet.worker("--concurrency", "6", heartbeat=HEARTBEAT)


def _detour(
    run: Run,
    away: Away,
    *,
    seconds: float = AWAY_SECONDS,
    most: float = STANDSTILL_SECONDS,
    flaps: int = 1,
    begin: Callable[[Run], None] = _start,
) -> None:
    """Take Redis away under load; the way must change, and change back."""
    run.judges_caps = False  # what runs is counted from outside
    limit()
    load = Load(run)
    load.top_up()
    load.pause_some()
    begin(run)
    until(lambda: run.ended() >= 50, "tasks end", PATIENCE)
    with Ways() as ways:
        load.last(3)
        ends = Ends(run)
        for _ in range(flaps):
            with away(run):
                load.last(seconds)
            if flaps > 1:
                load.last(FLAP_SECONDS)
        if begin is not _start:  # only a scheduler lets claims return
            scheduler = run.fleet.scheduler()
            until(lambda: leads(scheduler), "the scheduler leads", PATIENCE)
        _return(load, ways)
        load.last(3)
        _measure(load, ways, ends, most)
    if count := Task.objects.filter(id__in=load.paused).exclude(status="queued").count():
        run.broken.append(f"{count} tasks of a paused queue started")
    Task.objects.filter(id__in=load.paused).delete()
    run.await_all()
    run.broken += overlaps(run.log)
    run.broken += over_rate(_starts(queue="other"), RATE, BURST + CAPS["other"])
    run.broken += over_rate(_starts(concurrency_key="slow"), 1 / DELAY, 1 + LATE)


def _return(load: Load, ways: Ways) -> None:
    """Wait until claims use Redis again."""
    back_at = time.monotonic()
    notify.breaker.reset()
    for _ in turns(RETURN_SECONDS, pause=0.1):
        load.top_up()
        if not ways.is_rows:
            load.run.measured["seconds from Redis's return until claims use it"] = time.monotonic() - back_at
            return


def _measure(load: Load, ways: Ways, ends: Ends, most: float) -> None:
    """Note the figures of a detour, and what is wrong with them; ``most``: the longest standstill (s)."""
    run, (standstill, *others), started = load.run, ends.longest(), ways.started()
    run.measured |= {
        "longest standstill around the detour (s)": standstill,
        "the next longest (s)": max(others, default=0.0),
        "tasks started from rows": started,
        "changes of the way": len(ways.changes),
        "slowest enqueue (s)": load.slowest,
        "load of the machine": os.getloadavg()[0],
    }
    for is_wrong, said in (
        (not started, "no task started from rows"),
        (load.errors, f"enqueue failed {load.errors} times"),
        (ways.is_rows or not ways.changes, f"the way did not change to the rows and back: {ways.changes}"),
        (standstill > most, f"no task ended for {standstill:.1f} s, {ends.where(ways)}"),
    ):
        run.broken += [said] if is_wrong else []


def _starts(**of: str) -> list[datetime]:
    found = Task.objects.filter(started_at__isnull=False, **of).order_by("started_at")
    return list(found.values_list("started_at", flat=True))


# -- judgement ---------------------------------------------------------------------------


@dataclass
class Ends:
    """The ends of tasks since it was made, by what the rows say."""

    run: Run

    def __post_init__(self) -> None:
        self.since = self._now()

    @staticmethod
    def _now() -> datetime:
        with connection.cursor() as cursor:
            cursor.execute("SELECT clock_timestamp()")
            found: datetime = cursor.fetchone()[0]
        return found

    def _gaps(self) -> Iterator[tuple[timedelta, datetime]]:
        ends = Task.objects.filter(finished_at__gte=self.since).order_by("finished_at")
        instants = [self.since, *ends.values_list("finished_at", flat=True), self._now()]
        yield from ((at - before, before) for before, at in itertools.pairwise(instants))

    def longest(self) -> list[float]:
        """Return the three longest times without an end, in seconds."""
        return [gap.total_seconds() for gap, _ in sorted(self._gaps(), reverse=True)[:3]]

    def where(self, ways: Ways) -> str:
        """Say when that was, beside the changes of the way."""
        _, at = max(self._gaps())
        changes = [(f"{(then - at).total_seconds():+.1f} s", is_rows) for then, is_rows in ways.changes]
        return f"from which on the way changed after (to the rows): {changes}"


def overlaps(log: str) -> list[str]:
    """Return where more functions ran at once than a cap allows, and which began twice."""
    caps = {"": CAPS[""], "default": CAPS["default"], "other": CAPS["other"], "type": TYPE, "one": KEY}
    running, begun, wrong = Counter[str](), Counter[str](), dict[str, None]()
    for line in lines(log):
        sign, text = line[0], line[1:]
        _, queue, user, key = text.split("|")
        begun[text] += sign == "+"
        for gate in {"", queue, "type", key or "type", f"user {user}" if queue == "default" else "type"}:
            running[gate] += 1 if sign == "+" else -1
            cap = FAMILY if gate.startswith("family") else USER if gate.startswith("user") else caps.get(gate)
            if cap is not None and running[gate] > cap:
                wrong[f"{running[gate]} ran at once of {gate or 'everything'}, which may have {cap}"] = None
    return [*wrong, *(f"{text} began {count} times" for text, count in begun.items() if count > 1)]


FAULTS = [
    redis_gone,
    redis_full,
    redis_frozen,
    redis_flaps,
    redis_gone_for_one_worker,
    redis_frozen_for_two_workers,
    redis_closed_to_one_worker,
    speed_without_limits,
    speed_under_ten_limits,
]
