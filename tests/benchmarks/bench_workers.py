"""What many workers cost: the real claims, reports, heartbeats and wake-up calls of 1 to 1 000 simulated workers.

The workers are entries of a list, not processes. Threads do for each of them what the loop of a worker does: wait for
its call, claim, report the tasks at once, claim again. BENCH_TASKS sets the number of tasks, which come in bursts.
"""

import os
import random
import threading
import time
import uuid
from collections import Counter, deque
from dataclasses import dataclass, field
from datetime import UTC, datetime

from bench import Table, reset
from django.db import connections
from django_redis import get_redis_connection
from growth import postgresql_seconds, valkey_seconds

from queue_app import conf
from queue_app.core.priorities import Band
from queue_app.core.records import ClaimedTask, NewTask, Outcome, WorkerReport
from queue_app.index import Profile, get_index
from queue_app.models import Limit, Queue, Task, Worker
from queue_app.services.enqueue.store import enqueue_many
from queue_app.services.lifecycle.claim import claim
from queue_app.services.lifecycle.finish import finish
from queue_app.services.repair.reap import Reaper
from queue_app.services.repair.rebuild import rebuild
from queue_app.services.worker import registration as services
from queue_app.sql import workers as worker_rows
from tests.support.waiting import turns, until

COUNTS = (1, 10, 100, 1000)
THREADS, SLOTS, BURST = 4, 5, 200
BEAT_SECONDS = 10.0
QUEUES = ("plain", "fair", "limited")
TYPES = tuple(f"bench.type{number}" for number in range(6))
PROFILES = (
    Profile.of((), TYPES, (), SLOTS),
    Profile.of((), TYPES[:3], (), SLOTS),
    Profile.of(QUEUES[:2], TYPES, (), SLOTS),
)


@dataclass(slots=True)
class Simulated:
    """A worker without a process."""

    profile: Profile
    id: uuid.UUID = field(default_factory=uuid.uuid4)
    tasks: list[ClaimedTask] = field(default_factory=list)
    done: int = 0
    beats_at: float = 0.0


@dataclass
class Crew:
    """The workers that one thread turns."""

    workers: list[Simulated]
    counted: Counter[str] = field(default_factory=Counter)
    is_over: bool = False

    def run(self) -> None:
        """Turn the workers until the end."""
        index, client = get_index(), get_redis_connection("default")
        idle = {index.keys.wake(str(worker.id)): worker for worker in self.workers}
        busy = deque(self.workers)
        while not self.is_over:
            self._beat()
            for _ in range(len(busy)):
                worker = busy.popleft()
                if self._turn(worker):
                    busy.append(worker)
            call = client.blpop(list(idle), timeout=0.001 if busy else 0.1)
            while call is not None:
                self.counted["calls"] += 1
                if idle[call[0].decode()] not in busy:
                    busy.append(idle[call[0].decode()])
                call = client.lpop(call[0]) and call
        connections.close_all()

    def _turn(self, worker: Simulated) -> bool:
        """Report and claim; return whether to go on."""
        if worker.tasks:
            now = datetime.now(UTC)
            worker.done += len(finish([Outcome(task, now, now, None) for task in worker.tasks]))
        worker.tasks = claim(worker.profile, worker.id, SLOTS)
        self.counted["claims"] += 1
        self.counted["empty"] += not worker.tasks
        return bool(worker.tasks)

    def _beat(self) -> None:
        now = time.monotonic()
        for worker in self.workers:
            if worker.beats_at <= now:
                worker.beats_at = now + BEAT_SECONDS
                self.counted["beats"] += 1
                worker_rows.heartbeat(worker.id, WorkerReport(tasks_done=worker.done))


def run(table: Table) -> None:
    """Measure each number of workers, and the ratio of the last to that of ten."""
    total = table.sized(int(os.environ.get("BENCH_TASKS", "5000")))
    costs = {count: _measure(table, count, total) for count in COUNTS}
    for name, at in (("Valkey", 0), ("PostgreSQL", 1)):
        table.add(f"{name}, µs a task: 1 000 workers / 10", "≤ 1.5", f"{costs[1000][at] / costs[10][at]:.2f}")


def _measure(table: Table, count: int, total: int) -> tuple[float, float]:
    _prepare()
    crew = [Simulated(PROFILES[number % len(PROFILES)]) for number in range(count)]
    for worker in crew:
        name = f"w{worker.id}"
        identity = services.WorkerIdentity(
            id=worker.id, name=name, host=name, pid=1, process_identity="", version="0"
        )  # of another host
        services.register(identity, worker.profile, concurrency=SLOTS, heartbeat_seconds=BEAT_SECONDS)
    parts = [Crew(crew[at::THREADS]) for at in range(min(THREADS, count))]
    threads = [threading.Thread(target=part.run) for part in parts]
    for thread in threads:
        thread.start()
    until(lambda: sum(part.counted["claims"] for part in parts) >= count, "all wait for calls")
    before, began = _seconds(), time.monotonic()
    beats = sum(part.counted["beats"] for part in parts)
    bursts = 0
    for start in range(0, total, BURST):
        enqueue_many(_mixed(start, min(BURST, total - start)))
        bursts += 1
        until(_keep_up, "they keep up", 600)
    until(lambda: not Task.objects.exclude(status="completed").exists(), "all are completed", 600)
    seconds = time.monotonic() - began
    valkey, postgresql = (now - was for now, was in zip(_seconds(), before, strict=True))
    for part in parts:
        part.is_over = True
    for thread in threads:
        thread.join()
    beat = _cost_of_a_beat(crew)  # what these cost depends on the time, not on the tasks
    postgresql -= beat * (sum(part.counted["beats"] for part in parts) - beats)
    valkey, postgresql = 1e6 * valkey / total, 1e6 * postgresql / total
    counted = sum((part.counted for part in parts), Counter[str]())
    shares = [worker.done for worker in crew]
    even = sum(shares) ** 2 / (len(shares) * sum(share**2 for share in shares))  # Jain's index: 1 if all are equal
    table.add(
        f"{count:,} workers, {total:,} tasks: Valkey, PostgreSQL, µs a task; PostgreSQL, µs a heartbeat; tasks/s",
        "-",
        f"{valkey:.0f}, {postgresql:.0f}; {beat * 1e6:.0f}; {total / seconds:,.0f}",
    )
    table.add(
        f"{count:,} workers: calls a burst of {BURST}; claims that found nothing, of all; fairness",
        "-",
        f"{counted['calls'] / bursts:.1f}; {counted['empty'] / counted['claims']:.2f}; {even:.2f}",
    )
    if count >= 100:
        missed = conf.get().worker.missed_heartbeats
        what = (
            f"{count:,} workers: seconds until the tasks of 100 dead ones are taken back ({missed} heartbeats of 1 s)"
        )
        table.add(what, f"≤ {missed + 2}", _kill(crew))
    return valkey, postgresql


def _keep_up() -> bool:
    return not get_index().leased(0)[1] or Task.objects.filter(status="queued").count() <= 5 * BURST


def _cost_of_a_beat(crew: list[Simulated]) -> float:
    """Return the processor seconds of PostgreSQL for a heartbeat."""
    before = _seconds()[1]
    for number in range(1000):
        worker_rows.heartbeat(crew[number % len(crew)].id, WorkerReport())
    return (_seconds()[1] - before) / 1000


def _kill(crew: list[Simulated]) -> str:
    """Let 100 workers with heartbeats of 1 s die with their tasks; return how long until these are taken back."""
    doomed = crew[:100]
    enqueue_many(NewTask(task_type=TYPES[0], queue="plain") for _ in range(100 * SLOTS))
    for worker in doomed:
        claim(worker.profile, worker.id, SLOTS)
    ids = [worker.id for worker in doomed]
    held = Task.objects.filter(status="executing").count()
    Worker.objects.filter(id__in=ids).update(heartbeat_seconds=1.0)
    reaper, began = Reaper(), time.monotonic()
    for _ in turns(60, pause=0.5):
        reaper.run_once()
        if not Task.objects.filter(status="executing").exists():
            break
    left = Task.objects.filter(status="executing").count()
    return f"{time.monotonic() - began:.1f} ({held - left} of {held} tasks)"


def _prepare() -> None:
    Limit.objects.all().delete()
    reset()
    Queue.objects.filter(name__in=QUEUES).delete()
    Queue.objects.create(name="fair", fair_by="user")
    Queue.objects.create(name="limited", max_concurrent=50)
    Limit.objects.create(scope="key", name="account", max_concurrent=2)
    rebuild()


def _mixed(start: int, count: int) -> list[NewTask]:
    chance = random.Random(start)
    return [
        NewTask(
            task_type=chance.choice(TYPES[:3] if number % 2 else TYPES),
            args=[number],
            queue=QUEUES[number % 3],
            priority=chance.choice(list(Band)),
            user=f"user{number % 50}",
            concurrency_key=f"account:{number % 400}" if number % 3 == 2 else "",
        )
        for number in range(start, start + count)
    ]


def _seconds() -> tuple[float, float]:
    """Return the processor time of Valkey and of PostgreSQL so far."""
    return valkey_seconds(), postgresql_seconds()
