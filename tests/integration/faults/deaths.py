"""Faults of the queue's own processes: each disturbs a run at random moments, and leaves it to finish by itself."""

from __future__ import annotations

import os
import re
import signal
import threading
import time
from collections import Counter
from contextlib import ExitStack

import psutil
from django.utils import timezone

from queue_app.models import MaintenanceJob, Task, Worker
from queue_app.services.upkeep.maintenance import JOBS, run_overdue
from tests.integration.faults.arena import patient
from tests.integration.faults.run import PATIENCE, Run
from tests.integration.faults.starts import alone, is_running, kill, leads, start, supervised
from tests.integration.processes import Process, lines
from tests.support.engine import Side
from tests.support.waiting import let_pass, until


def kill_children(run: Run) -> None:
    """Kill a worker under its supervisor, several times."""
    run.load()
    above, _ = start(run)
    for _ in run.moments(3):
        children = until(above.children, "the supervisor has started a worker", PATIENCE)
        kill(run.chance.choice(children))
        run.flowing_again("flowing after a kill of a child (s)", time.monotonic())


def kill_supervisor(run: Run) -> None:
    """Kill the supervisor: its workers notice, leave, and are replaced by those of the next."""
    run.load()
    above, _ = start(run)
    for _ in run.moments(2):
        orphans = above.children()
        kill(above.pid)
        killed_at = time.monotonic()
        above.exit_code()
        above = supervised(run)
        run.flowing_again("flowing after a kill of a supervisor (s)", killed_at)
        until(lambda gone=orphans: not any(is_running(pid) for pid in gone), "orphaned workers leave", PATIENCE)


def family(pid: int) -> list[psutil.Process]:
    """Return a process and all that it has started."""
    first = psutil.Process(pid)
    return [first, *first.children(recursive=True)]


def kill_everything(run: Run) -> None:
    """Kill every process at once, and start all of them again."""
    run.load()
    processes = [*start(run), run.fleet.processes[0]]
    for _ in run.moments(2):
        for process in processes:
            process.kill()
        killed_at = time.monotonic()
        processes = [*start(run), run.fleet.processes[-3]]
        run.flowing_again("flowing after a kill of everything (s)", killed_at)


def stop_and_continue(run: Run, **env: str) -> None:
    """Stop a worker for longer than its heartbeat allows, then let it go on: it comes too late."""
    run.load(run.count)
    run.fleet.scheduler(**env)
    one = alone(run)
    run.reach(run.chance.uniform(0.05, 0.2))
    run.held_by(one, 3)
    one.send(signal.SIGSTOP)
    supervised(run)
    worker = Worker.objects.get(pid=one.pid)
    until(lambda: Worker.objects.filter(pk=worker.id, status="dead").exists(), "it is declared dead")
    until(lambda: not Task.objects.filter(worker_id=worker.id, status="executing").exists(), "its tasks go on")
    run.gate.touch()
    one.send(signal.SIGCONT)  # before its own watchdog would end it
    assert one.exit_code() == 3, f"it is not told that it was declared dead:\n{one.log}"
    refused = one.log.count("came too late and was refused")
    assert refused, "its late results are refused"
    run.measured["late results refused"] = refused


def suspend_host(run: Run, seconds: float = 12) -> None:
    """Suspend everything but the servers for four times the budget of a heartbeat, as a laptop that is closed does."""
    run.load()
    processes = [*start(run), run.fleet.processes[0]]
    for _ in run.moments(2):
        groups = [os.getpgid(process.pid) for process in processes if process.alive]
        with run.watch.away():
            for group in groups:
                os.killpg(group, signal.SIGSTOP)
            let_pass(seconds)
            for group in groups:
                os.killpg(group, signal.SIGCONT)
        run.flowing_again("flowing after a suspended host went on (s)", time.monotonic())


def freeze_everything(run: Run, seconds: float = 150) -> None:
    """Freeze everything, the servers too, for longer than any timeout: no task runs twice, and no crash counts"""
    run.load()
    processes = [*start(run), run.fleet.processes[0]]
    run.reach(0.3)
    frozen = [each for process in processes for each in family(process.pid)]
    with ExitStack() as stack:
        stack.enter_context(run.watch.away())
        for server in (run.arena.postgres, run.arena.valkey):
            stack.enter_context(run.arena.stopped(server))
        for each in frozen:
            each.suspend()
        let_pass(seconds)
        for each in frozen:
            each.resume()
    run.flowing_again("flowing after a freeze of everything (s)", time.monotonic())
    until(lambda: run.ended() >= len(run.order), "all tasks end", 2 * PATIENCE)
    run.broken += [f"{process.arguments} has ended" for process in processes if not process.alive]
    run.broken += [f"process {each.pid} has ended" for each in frozen if not is_running(each.pid)]
    run.broken += [f"{task_id} counts a crash" for task_id in Task.objects.filter(crashes__gt=0).values_list("id")]
    begun = Counter(line for line in lines(run.log) if line.startswith("+"))
    run.broken += [f"{text} began {number} times" for text, number in begun.items() if number > 1]


# -- the scheduler ---------------------------------------------------------------------


def kill_scheduler(run: Run) -> None:
    """Kill the leading of two schedulers, and with it a worker whose tasks only the other one returns."""
    run.load()
    hurry = {"DUE": 0.1, "REAP": 0.3, "RECONCILE": 0.5, "FALLBACK": 1, "LEADER": 3, "MAINTENANCE": 0.2}
    env = {f"TASKQUEUE__SCHEDULER__{name}_SECONDS": str(value) for name, value in hurry.items()}
    schedulers = [run.fleet.start("runscheduler", "--with-maintenance", **env) for _ in range(2)]
    above, one = supervised(run), alone(run)
    for _ in run.moments(1):
        until(lambda: any(leads(each) for each in schedulers), "one leads", PATIENCE)
        leader = next(each for each in schedulers if leads(each))
        other = next(each for each in schedulers if each is not leader)
        leader.kill()
        killed_at = time.monotonic()
        one.kill()
        until(lambda heir=other: leads(heir), "the other one takes over", PATIENCE)
        run.measured["second scheduler leads after (s)"] = time.monotonic() - killed_at
        assert above.alive


PROMOTED = re.compile(r"queue_app\.promote\S* succeeded")
#: In a hurry, so that a job is overdue after a second and a half.
UPKEEP = {"TASKQUEUE__SCHEDULER__MAINTENANCE_SECONDS": "0.5"}


def kill_celery(run: Run) -> None:
    """Kill Celery, worker and beat, amid its upkeep: the scheduler runs what is overdue."""
    run.load()
    start(run, **UPKEEP)
    for _ in run.moments(2):
        kill_upkeep(run, run.fleet.celery())


def kill_upkeep(run: Run, celery: Process) -> None:
    """Kill this Celery once it works, and wait until others have done every job."""
    until(lambda: len(PROMOTED.findall(celery.log)) > 1, "Celery keeps things up", PATIENCE)
    celery.kill()
    killed_at, since = time.monotonic(), timezone.now()
    done = MaintenanceJob.objects.filter(name__in=JOBS, succeeded_at__gt=since)
    until(lambda: patient(done.count) == len(JOBS), "the scheduler does what is overdue", PATIENCE)
    run.measured["upkeep done again after a kill of Celery (s)"] = time.monotonic() - killed_at


def two_of_everything(run: Run) -> None:
    """Let two schedulers lead at once, as after a FLUSHALL, and two more processes do the upkeep all the time."""
    run.load()
    start(run)
    run.fleet.scheduler(TASKQUEUE__SCHEDULER__MAINTENANCE_SECONDS="0.2")
    stop = threading.Event()

    def maintain() -> int:
        rounds = 0
        while not stop.wait(0.05):
            patient(lambda: run_overdue(every=True))
            rounds += 1
        return rounds

    sides = [Side(maintain) for _ in range(2)]
    try:
        for _ in run.moments(3):
            run.arena.flush()
        run.reach(1)
    finally:
        stop.set()
        rounds = [side.result() for side in sides]
    run.measured["rounds of upkeep beside each other"] = min(rounds)
    assert min(rounds)
