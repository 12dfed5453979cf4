"""The processes of a run: a scheduler, two workers under a supervisor, and one by itself."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator

import psutil

from tests.integration.faults.run import HEARTBEAT, PATIENCE, Run
from tests.integration.processes import Process
from tests.support.waiting import until


def start(run: Run, **env: str) -> tuple[Process, Process]:
    """Start a scheduler (with this environment), two processes under a supervisor, and one by itself; return these.

    The workers start once the scheduler leads: if a fault took a server away before, the scheduler would exit.
    """
    scheduler = run.fleet.scheduler(**env)
    until(lambda: leads(scheduler), "the scheduler leads", PATIENCE)
    return supervised(run), alone(run)


def disturbed(run: Run, number: int, what: str, **env: str) -> Iterator[int]:
    """Start everything under load. Yield at several moments, and measure after each when tasks end again."""
    run.load()
    start(run, **env)
    for moment, _ in enumerate(run.moments(number)):
        yield moment
        run.flowing_again(f"flowing after {what} (s)", time.monotonic())


def leads(scheduler: Process) -> bool:
    """Whether the last that a scheduler has said about it is that it leads."""
    words = [line.rsplit(" ", 1)[-1] for line in scheduler.log.splitlines() if line.startswith("scheduler ")]
    return bool(words) and words[-1] == "leads"


def supervised(run: Run) -> Process:
    """Start two worker processes under a supervisor."""
    return run.fleet.worker("--processes", "2", "--concurrency", "3", heartbeat=HEARTBEAT)


def alone(run: Run) -> Process:
    """Start one worker process."""
    return run.fleet.worker("--concurrency", "4", heartbeat=HEARTBEAT)


def kill(pid: int) -> None:
    """Kill a process without asking."""
    os.kill(pid, signal.SIGKILL)


def is_running(pid: int) -> bool:
    """Whether a process is there, and not only its exit code."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
