"""Simulations: how near to a real run they come, and how long a million tasks take."""

import random
import resource
import time

from bench import Table, process
from bench_app.tasks import lasts
from django.utils import timezone

from queue_app.core.priorities import Band
from queue_app.core.records import NewTask
from queue_app.core.simulation import NEVER, SECOND, Crew, Load, Plan, TaskKind, Waits
from queue_app.index.simulated import simulated_index
from queue_app.models import Limit, Queue, Task
from queue_app.registry import type_of
from queue_app.services.enqueue.store import enqueue_many
from queue_app.services.simulate.engine import Engine
from queue_app.services.simulate.simulate import simulate

DAY = 86_400 * SECOND


def run(table: Table) -> None:
    """Compare a simulation with a real run of three queues, then simulate a day of a million tasks."""
    _calibration(table)
    for seconds, slots in ((20, 300), (2, 40)):
        _million(table, seconds, slots)


def _calibration(table: Table) -> None:
    chance, seconds = random.Random(1), table.sized(180)
    Queue.objects.update_or_create(name="imports", defaults={"max_concurrent": 5})
    Limit.objects.update_or_create(scope="key", name="customer", defaults={"max_concurrent": 2})
    since = timezone.now()
    with (
        process("runscheduler"),
        process("runworker", "--concurrency", "8"),
        process("runworker", "--concurrency", "8"),
    ):
        time.sleep(5)
        began = time.monotonic()
        while (now := time.monotonic() - began) < seconds:
            busy = 1.0 if now % 60 < 40 else 0.2  # two thirds of each minute bring more than the workers can do
            tasks = [
                NewTask(
                    task_type=type_of(lasts),
                    args=(round(chance.expovariate(2.0), 3),),
                    queue=chance.choice(("mail", "imports", "default")),
                    priority=Band(chance.randrange(1, 4)),
                    concurrency_key=chance.choice(("", "", "customer:1", "customer:2")),
                )
                for _ in range(round(chance.expovariate(1 / 16) * busy))
            ]
            if tasks:
                enqueue_many(tasks)
            time.sleep(0.5)
        while Task.objects.in_status("queued", "executing").exists():
            time.sleep(0.5)
    answer = simulate({}, since=since, until=timezone.now())
    for name, each in answer["calibration"]["bands"].items():
        real, other = each["actual"], each["simulated"]
        off = abs(other - real) / real if real else 0.0
        table.add(f"calibration of {name}", "≤ 10 %", f"{real:.2f} s, simulated {other:.2f} s ({off:.1%})")
    Queue.objects.filter(name="imports").update(max_concurrent=None)
    Limit.objects.all().delete()


def _million(table: Table, seconds: float, slots: int) -> None:
    chance, load, count = random.Random(1), Load(), table.sized(1_000_000)
    begin = round(time.time()) * SECOND
    types = [f"bench.type{number}" for number in range(20)]
    for _ in range(count):
        kind = TaskKind(
            chance.choice(("mail", "imports", "default")), chance.choice(types), chance.choice((1, 2, 2, 3, 4))
        )
        load.add(kind, begin + chance.randrange(DAY), round(chance.expovariate(1 / seconds) * SECOND))
    crew = Crew((), tuple(types), (), ((begin, slots),))
    plan = Plan(load=load, crews=(crew,), thresholds={2: 1200.0, 3: 600.0, 4: 600.0}, begin=begin, end=begin + DAY)
    before, used = time.monotonic(), resource.getrusage(resource.RUSAGE_SELF)
    with simulated_index() as index:
        found = Engine(index, plan, real_now=begin).run()
        server = index._client.info("cpu")
    took, mine = time.monotonic() - before, resource.getrusage(resource.RUSAGE_SELF)
    cpu = server["used_cpu_user"] + server["used_cpu_sys"]
    cpu += mine.ru_utime + mine.ru_stime - used.ru_utime - used.ru_stime
    waits = Waits.of([NEVER if at == NEVER else at - q for at, q in zip(found.started, load.queued_at, strict=True)])
    assert not waits.starved
    exact = f"waits exact to {found.resolution / SECOND:.2g} s"
    table.add(f"{count:,} tasks of {seconds:g} s: seconds, of which CPU", "≤ 120", f"{took:.0f}, {cpu:.0f}; {exact}")
