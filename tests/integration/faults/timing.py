"""How long it takes: a worker's tasks after its death, a queue after its index is gone."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

from queue_app.core.records import NewTask
from queue_app.core.states import TERMINAL
from queue_app.index import get_index
from queue_app.models import Queue, RuntimeSettings, Task, TaskAttempt, Worker
from queue_app.registry import type_of
from queue_app.services.enqueue.store import enqueue_calls, enqueue_many
from queue_app.services.enqueue.validate import check_spec
from queue_app.services.repair.rebuild import rebuild
from queue_app.sql import snapshot
from tests.integration.app import tasks
from tests.integration.faults.run import PATIENCE, Run
from tests.integration.processes import Process, lines
from tests.support.waiting import until

HEARTBEAT = 1.0


def scheduler(run: Run) -> Process:
    """Start a scheduler with the default settings."""
    return run.fleet.start("runscheduler")


def uncapped() -> None:
    """Take the caps away."""
    Queue.objects.update(max_concurrent=None)
    RuntimeSettings.objects.update(max_concurrent=None)
    assert rebuild() is not None


def ready(*processes: Process) -> None:
    """Wait until the workers have registered."""
    pids = [process.pid for process in processes]
    until(lambda: Worker.objects.filter(pid__in=pids).count() == len(pids), "they have registered", PATIENCE)


def death_to_rerun(run: Run, *, silent: bool) -> float:
    """Return the seconds from a worker's death until its task runs again on another one.

    ``silent``: the process is only stopped, so that nothing but the missing heartbeat tells,
    as when another machine dies.
    """
    gate = str(Path(run.log).with_suffix(".gate"))
    scheduler(run)
    one = run.fleet.worker("--concurrency", "1", heartbeat=HEARTBEAT)
    ready(one)
    enqueue_many([NewTask(task_type=type_of(tasks.hold), args=[run.log, "held", gate])])
    until(lambda: len(lines(run.log)) == 1, "it runs")
    ready(run.fleet.worker("--concurrency", "1", heartbeat=HEARTBEAT))
    os.kill(one.pid, signal.SIGSTOP if silent else signal.SIGKILL)
    died_at = time.monotonic()
    until(lambda: len(lines(run.log)) == 2, "it runs again", PATIENCE)
    seconds = time.monotonic() - died_at
    Path(gate).touch()
    until(lambda: Task.objects.filter(status="completed").count() == 1, "it ends")
    return seconds


def everything_killed(run: Run) -> tuple[float, int]:
    """Kill all at 80 of 200 tasks of 0.2 s; return the seconds until all are done, and how many ended twice."""
    uncapped()

    def processes() -> list[Process]:
        return [scheduler(run), run.fleet.start("runworker", "--processes", "2", "--concurrency", "4")]

    new = [NewTask(task_type=type_of(tasks.work), args=[run.log, str(number), 0.2]) for number in range(200)]
    enqueue_many(new)
    first = processes()
    until(lambda: Task.objects.filter(status__in=TERMINAL).count() >= 80, "80 are done", PATIENCE)
    for process in first:
        process.kill()
    killed_at = time.monotonic()
    processes()
    until(lambda: Task.objects.filter(status="completed").count() == 200, "all are done", PATIENCE)
    seconds = time.monotonic() - killed_at
    ends = [line for line in lines(run.log) if line[0] == "-"]
    assert not TaskAttempt.objects.exclude(exception_class="queue_app.exceptions.WorkerDied").exists()
    return seconds, len(ends) - len(set(ends))


def flush_to_claims(run: Run, queued: int) -> float:
    """Return the seconds from FLUSHALL of so many queued tasks until tasks are claimed again, default settings."""
    uncapped()
    for start in range(0, queued, 5000):
        calls = [([run.log, str(number)], {}) for number in range(start, min(start + 5000, queued))]
        enqueue_calls(check_spec(NewTask(task_type=type_of(tasks.note))), calls, len)
    scheduler(run)
    run.fleet.start("runworker", "--processes", "2")
    until(lambda: len(lines(run.log)) >= 200, "tasks end", PATIENCE)
    before = snapshot.generation()
    run.arena.flush()
    flushed_at = time.monotonic()

    def is_open() -> bool:
        found = get_index().generation()
        return found.state in ("ready", "loading") and found.number > before

    until(is_open, "claims are allowed", PATIENCE)
    done = len(lines(run.log))
    until(lambda: len(lines(run.log)) >= done + 200, "tasks end again", PATIENCE)
    assert Task.objects.filter(status="queued").count() > queued / 2
    return time.monotonic() - flushed_at
