"""Several worker processes under one: start, restart, stop, and give back what a dead one held.

Signal handlers only count and ring; the loop does the rest, so that it never acts on a
child that it is just starting or has just collected.
"""

from __future__ import annotations

import gc
import logging
import os
import signal
import time
import uuid
import warnings
from collections import deque
from dataclasses import dataclass, replace
from typing import NoReturn

from django.db import Error as DatabaseError
from django.db import connections

from queue_app.services.repair.reap import mark_dead
from queue_app.workers import transport
from queue_app.workers.health import HealthMonitor, LoopHeartbeat, notify
from queue_app.workers.lifecycle import (
    DUMP,
    HURRY,
    QUIET,
    Exit,
    Wakeup,
    leave_group_of_parent,
    on_signals,
    signals_held,
)
from queue_app.workers.options import WorkerOptions, numbered_name
from queue_app.workers.reload import Reloader, start_again
from queue_app.workers.worker import Worker

logger = logging.getLogger("taskqueue")

#: A child that dies sooner than this after its start is restarted ever more slowly.
STABLE_SECONDS = 10.0
MIN_BACKOFF_SECONDS = 0.5
MAX_BACKOFF_SECONDS = 30.0
#: A loop that has not turned for three heartbeats and so long is stuck.
STALE_SECONDS = 5.0


@dataclass(slots=True)
class Child:
    """One worker process; ``backoff`` is how long its start was put off."""

    number: int
    worker_id: uuid.UUID
    pid: int
    started_at: float
    backoff: float = 0.0


class Supervisor:
    """Runs ``processes`` workers with the same options."""

    def __init__(self, options: WorkerOptions, processes: int) -> None:
        self.options = options
        self.processes = processes
        self._children: dict[int, Child] = {}
        self._restarts: list[tuple[float, Child]] = []
        self._stops = 0  # stop signals so far
        self._passed_on = 0  # of these
        self._worst = Exit.OK
        self._wakeup = Wakeup()
        self._told: deque[signal.Signals] = deque()  # signals to pass on, beside those that stop
        self._quiet = False
        self.loop_heartbeats = [LoopHeartbeat() for _ in range(processes)]

    def run(self) -> Exit:
        """Keep the workers running until a signal; return the worst exit code."""
        handlers = {
            signal.SIGTERM: self.stop,
            signal.SIGINT: self.stop,
            HURRY: self.stop,
            signal.SIGCHLD: self._wakeup.set,
            DUMP: lambda: self._tell(DUMP),
            QUIET: self.quiet,
        }
        with on_signals(handlers):
            for number in range(1, self.processes + 1):
                if not self._stops:
                    self._start(number, backoff=0.0)
            while True:
                self.run_once()
                if not self._children and (self._stops or not self._restarts):
                    return self._worst
                self._wakeup.wait(self._patience())

    def run_once(self) -> None:
        """Collect the children that ended, pass signals on, and start the successors that are due."""
        for pid, status in _ended_children(list(self._children)):
            self._ended(self._children.pop(pid), os.waitstatus_to_exitcode(status))
        while self._passed_on < self._stops:
            self._passed_on += 1
            for pid in self._children:
                os.kill(pid, signal.SIGTERM if self._passed_on == 1 else HURRY)
        while self._told:
            number = self._told.popleft()
            for pid in self._children:
                os.kill(pid, number)
        now = time.monotonic()
        due = [child for at, child in self._restarts if at <= now]
        self._restarts = [(at, child) for at, child in self._restarts if at > now]
        for child in due:
            if not self._stops:
                self._start(child.number, child.backoff)

    def quiet(self) -> None:
        """Let the workers, and those that will take their place, claim nothing more."""
        self._quiet = True
        self._tell(QUIET)

    def _tell(self, number: signal.Signals) -> None:
        self._told.append(number)
        self._wakeup.set()

    def stop(self) -> None:
        """Let the workers drain; the second time, leave at once."""
        self._stops += 1
        self._wakeup.set()

    def _start(self, number: int, backoff: float) -> None:
        """Fork a worker; no connection may be open, or parent and child would share it."""
        connections.close_all()
        worker_id, supervisor = uuid.uuid4(), os.getpid()
        self.loop_heartbeats[number - 1].reset()
        with signals_held():  # the child inherits handlers that are not its own, until it has some
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", DeprecationWarning)  # the thread of the health holds no lock of ours
                try:
                    pid = os.fork()
                except OSError as error:  # no memory, or too many processes: the others work on
                    logger.error("worker process %d cannot be started: %s", number, error)  # noqa: TRY400
                    self._put_off(Child(number, worker_id, 0, time.monotonic(), backoff))
                    return
            if pid == 0:
                self._run_child(number, worker_id, supervisor)
        self._children[pid] = Child(number, worker_id, pid, time.monotonic(), backoff)

    def _run_child(self, number: int, worker_id: uuid.UUID, supervisor: int) -> NoReturn:
        code = int(Exit.CRASHED)
        try:
            leave_group_of_parent()
            options = replace(self.options, name=numbered_name(self.options.name, number))
            worker = Worker(options, worker_id, supervisor)
            worker.loop_heartbeat = self.loop_heartbeats[number - 1]
            if self._quiet:
                worker.quiet()
            code = int(worker.run())
        except Exception:
            logger.exception("worker process %d failed", number)
        finally:
            os._exit(code)

    def _ended(self, child: Child, code: int) -> None:
        """Note how a child ended; one that did not say goodbye leaves tasks behind."""
        if code == Exit.OK:
            return
        if code not in (Exit.LOST, Exit.GAVE_BACK):
            logger.error("worker process %d (pid %d) died with code %d", child.number, child.pid, code)
            _give_back(child.worker_id)
        if self._stops:
            self._worst = max(self._worst, Exit(code) if code in list(Exit) else Exit.CRASHED)
            return
        self._put_off(child)

    def _put_off(self, child: Child) -> None:
        """Start a successor: at once, or the later the more often a child has died young."""
        lived = time.monotonic() - child.started_at
        slower = max(MIN_BACKOFF_SECONDS, 2 * child.backoff)
        child.backoff = 0.0 if lived >= STABLE_SECONDS else min(MAX_BACKOFF_SECONDS, slower)
        self._restarts.append((time.monotonic() + child.backoff, child))

    def _patience(self) -> float | None:
        if not self._restarts or self._stops:
            return None
        return max(0.0, min(at for at, _ in self._restarts) - time.monotonic())


def _ended_children(pids: list[int]) -> list[tuple[int, int]]:
    ended: list[tuple[int, int]] = []
    for pid in pids:
        found, status = os.waitpid(pid, os.WNOHANG)
        if found:
            ended.append((pid, status))
    return ended


def _give_back(worker_id: uuid.UUID) -> None:
    if not transport.is_direct():
        return  # the server will notice
    try:
        mark_dead(worker_id)
    except DatabaseError as error:
        reason = " ".join(str(error).split())
        logger.warning("the scheduler will have to return the tasks of worker %s: %s", worker_id, reason)
    finally:
        connections.close_all()


def run_workers(
    options: WorkerOptions, processes: int, *, health_port: int | None = None, reload: bool = False
) -> Exit:
    """Run one worker in this process, or several under a supervisor; raise ``OSError`` for a port that is taken."""
    runner: Worker | Supervisor
    runner = Worker(options) if processes == 1 else Supervisor(options, processes)
    loop_heartbeats = [runner.loop_heartbeat] if isinstance(runner, Worker) else runner.loop_heartbeats
    HealthMonitor(loop_heartbeats, 3 * options.heartbeat_seconds + STALE_SECONDS, health_port).start()
    reloader = Reloader(lambda: os.kill(os.getpid(), signal.SIGTERM))
    if reload:
        reloader.start()
    gc.collect()
    gc.freeze()  # pages of what exists by now stay shared with the workers
    code = runner.run()
    notify("STOPPING=1")
    if reloader.changed:
        start_again()
    return code
