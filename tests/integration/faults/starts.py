"""The processes of a run: a scheduler, two workers under a supervisor, and one by itself."""

from __future__ import annotations

import os
import signal

import psutil

from tests.integration.faults.run import HEARTBEAT, Run
from tests.integration.processes import Process


def start(run: Run, **env: str) -> tuple[Process, Process]:
    """Start a scheduler (with this environment), two processes under a supervisor, and one by itself; return these."""
    run.fleet.scheduler(**env)
    return supervised(run), alone(run)


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
