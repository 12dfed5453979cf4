"""PostgreSQL loses the commits of claims, which do not wait for the disk, while their tasks run on.

The tasks take longer than every interval of the repair. Each key allows one task at a time. What runs is counted by
what the functions write, not by rows or leases.
"""

from __future__ import annotations

import re
import signal
from collections import Counter

import psutil
from django.db import connection, transaction

from queue_app.core.records import NewTask
from queue_app.models import Limit, Task, Worker
from queue_app.registry import type_of
from queue_app.services.enqueue.store import enqueue
from tests.integration.app import tasks
from tests.integration.faults.failover import standby_of, take_over
from tests.integration.faults.network import Network
from tests.integration.faults.run import CAPS, Run
from tests.integration.processes import Process, lines
from tests.support.proxy import Proxy
from tests.support.waiting import let_pass, until

KEYS = CAPS["long"]  # so all run at once
#: Longer than two steps of the reconciler, and shorter than the interval of the heartbeats.
SECONDS = 15.0


def long_tasks(run: Run) -> None:
    """Enqueue two tasks for each key."""
    run.judges_caps = False
    run.watch.silent_after = 2 * SECONDS  # so rarely a task ends
    for number in range(2 * KEYS):
        put(run, f"k{number % KEYS}:{number}", SECONDS, concurrency_key=f"k:{number % KEYS}")


def put(run: Run, text: str, seconds: float, **options: str) -> None:
    """Enqueue a task."""
    new = NewTask(task_type=type_of(tasks.work), args=[run.log, text, seconds], queue="long", **options)
    run.order.append((enqueue(new).id, "long", new.priority or 2))


def started(run: Run) -> list[str]:
    """Return a line for each function that began."""
    return [line for line in lines(run.log) if line.startswith("+k")]


def judge(run: Run, crew: list[Process]) -> None:
    """Wait for the ends; find keys under which two functions ran at once, and functions that ran twice."""
    until(lambda: run.ended() >= len(run.order), "all long tasks end", 6 * SECONDS)
    again = sum(int(count) for worker in crew for count in re.findall(r"had forgotten (\d+) grants", worker.log))
    run.measured["claims that PostgreSQL had forgotten"] = again
    if not again:
        run.broken.append("PostgreSQL forgot no claim, so this run shows nothing")
    running: Counter[str] = Counter()
    for line in lines(run.log):
        if line[1:2] == "k":
            key = line[1:].partition(":")[0]
            running[key] += 1 if line[0] == "+" else -1
            if running[key] > 1:
                run.broken.append(f"{running[key]} functions ran at once under the key {key}")
    run.broken += [f"{line} began {n} times" for line, n in Counter(started(run)).items() if n > 1]


def stop_log_writer(run: Run) -> None:
    """Stop the process of PostgreSQL that writes commits for which nobody waits."""
    server = psutil.Process(run.arena.postgres.process.pid)
    (writer,) = [each for each in server.children() if "walwriter" in " ".join(each.cmdline())]
    writer.suspend()


def postgres_dies_after_claims(run: Run) -> None:
    """PostgreSQL is killed just after it granted tasks of 15 s: their rows are queued again"""
    Limit.objects.create(scope="key", name="k", max_concurrent=1)
    crew = workers(run)
    run.fleet.processes[0].send(signal.SIGSTOP)  # other commits would take those of the claims to the disk
    stop_log_writer(run)
    with transaction.atomic():
        long_tasks(run)
    until(lambda: len(started(run)) >= KEYS, "one task of each key runs", 30)
    connection.close()
    with run.watch.away():
        run.arena.kill_postgres()
        run.arena.start_postgres()
        run.fleet.processes[0].send(signal.SIGCONT)
        judge(run, crew)  # in tasks of 15 s no end is no standstill


def standby_lacks_claims(run: Run) -> None:
    """PostgreSQL fails over to a standby that lacks the last 3 s, in which tasks of 15 s were claimed"""
    Limit.objects.create(scope="key", name="k", max_concurrent=1)
    way = run.on_exit(Proxy(run.arena.postgres.port))
    standby = run.on_exit(standby_of(run.arena, way))
    network = Network.of(run)
    crew = workers(run, **network.env(run.arena))
    for worker in crew:
        worker.send(signal.SIGSTOP)
    long_tasks(run)
    until(lambda: standby.has(Task.objects.count()), "the standby has the tasks", 30)
    way.forget()
    for worker in crew:
        worker.send(signal.SIGCONT)
    until(lambda: len(started(run)) >= KEYS, "one task of each key runs", 30)
    let_pass(3)  # so much is lost
    with run.watch.away():
        take_over(run, standby, network)
        judge(run, crew)


def workers(run: Run, **env: str) -> list[Process]:
    """Start a scheduler and two workers; return the workers once they know the tasks."""
    run.fleet.scheduler(**env)
    crew = [run.fleet.worker("--concurrency", "6", **env) for _ in range(2)]
    until(lambda: Worker.objects.filter(status="active").count() == len(crew), "they have registered", 60)
    known = Worker.objects.filter(task_types__contains=[type_of(tasks.work)])
    put(run, "first", 0.0)
    until(lambda: known.count() == len(crew) and run.ended(), "they have discovered the tasks", 60)
    return crew


FAULTS = [postgres_dies_after_claims, standby_lacks_claims]
