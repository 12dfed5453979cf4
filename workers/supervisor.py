"""Several worker processes under one: start, restart and stop them, and give back the tasks of a dead one.

Signal handlers only count and wake the loop. The loop does the rest, so that no handler acts on a
child that the loop is just starting or has just collected.
"""

import logging
import math
import os
import signal
import time
import uuid
import warnings
from collections import deque
from dataclasses import dataclass, replace
from typing import NoReturn

from django.db import Error as DatabaseError, connections

from queue_app.core.ids import uuid7
from queue_app.exceptions import in_one_line
from queue_app.logs import console
from queue_app.workers.health import LoopHeartbeat, stale_seconds
from queue_app.workers.lifecycle import (
    DUMP,
    HURRY,
    QUIET,
    Exit,
    Wakeup,
    leave_group_of_parent,
    on_hangup,
    on_signals,
    signals_held,
)
from queue_app.workers.options import WorkerOptions, numbered_name
from queue_app.workers.process_guard import CHECKS, EXIT_SECONDS, MAX_GAP_SECONDS, LifeWatch
from queue_app.workers.transport.base import Transport
from queue_app.workers.worker import Worker

logger = logging.getLogger("taskqueue")

#: Minimum life of a child that is restarted at once; the restart of others is delayed more each time.
STABLE_SECONDS = 10.0
MIN_BACKOFF_SECONDS = 0.5
MAX_BACKOFF_SECONDS = 30.0
#: Time after which a child that was asked to end, and whose guard has not ended it either, is killed.
KILL_SECONDS = EXIT_SECONDS + 5.0
#: Added to the exit code of a child that ends by itself, so that a task that ends the process is not mistaken for that.
#: 0 is added to the code of one that a signal asked to end.
DONE = 64


@dataclass(slots=True)
class Child:
    """A worker process; ``backoff`` is how long its start was delayed."""

    number: int
    worker_id: uuid.UUID
    pid: int
    started_at: float
    backoff: float
    watch: LifeWatch


class Supervisor:
    """Runs ``processes`` workers with the same options."""

    def __init__(self, options: WorkerOptions, transport: Transport, processes: int) -> None:
        self.options = options
        self.processes = processes
        self.loop_heartbeats = [LoopHeartbeat() for _ in range(processes)]
        self._heartbeats = [LoopHeartbeat() for _ in range(processes)]  # of their guards
        self._stale = stale_seconds(options.heartbeat_seconds)
        self._check_at = 0.0  # when to check the children again (monotonic)
        self._turned_at = math.inf  # the last turn of the loop (monotonic)
        self._kill_at = math.inf  # when to kill the children that have not ended (monotonic)
        self._transport = transport
        self._children: dict[int, Child] = {}
        self._restarts: list[tuple[float, Child]] = []
        self._stops = 0  # stop signals received
        self._forwarded_stops = 0
        self._to_forward: deque[signal.Signals] = deque()  # other signals
        self._worst = Exit.OK
        self._wakeup = Wakeup()
        self._quiet = False

    def run(self) -> Exit:
        """Keep the workers running until a signal; return the worst exit code."""
        handlers = {
            signal.SIGTERM: self.stop,
            signal.SIGINT: self.stop,
            HURRY: self.stop,
            signal.SIGCHLD: self._wakeup.set,
            DUMP: lambda: self._forward(DUMP),
            QUIET: self.quiet,
            **on_hangup(self.hurry),
        }
        with on_signals(handlers):
            for number in range(1, self.processes + 1):
                if not self._stops:
                    self._start(number, backoff=0.0)
            while True:
                self.run_once()
                if not self._children and (self._stops or not self._restarts):
                    return self._worst
                self._wakeup.wait(self._sleep_seconds())

    def run_once(self) -> None:
        """Collect the children that ended, forward signals, and start the replacements that are due."""
        for pid in list(self._children):
            found, status = os.waitpid(pid, os.WNOHANG)
            if found:
                self._on_ended(self._children.pop(pid), os.waitstatus_to_exitcode(status))
        while self._forwarded_stops < self._stops:
            self._forwarded_stops += 1
            is_first = self._forwarded_stops == 1
            self._send(signal.SIGTERM if is_first else HURRY)
            grace = self.options.grace_seconds if is_first else 0.0
            self._kill_at = min(self._kill_at, time.monotonic() + grace + KILL_SECONDS)
        while self._to_forward:
            self._send(self._to_forward.popleft())
        now = time.monotonic()
        self._kill_at += max(0.0, now - self._turned_at - self._stale / CHECKS - MAX_GAP_SECONDS)  # all were frozen
        self._turned_at = now
        if now >= min(self._check_at, self._kill_at):
            self._kill_stuck(now)
        due = [child for at, child in self._restarts if at <= now]
        self._restarts = [(at, child) for at, child in self._restarts if at > now]
        for child in due:
            if not self._stops:
                self._start(child.number, child.backoff)

    def _kill_stuck(self, now: float) -> None:
        """End the children that showed no life in several checks, or that have not ended long after a stop signal."""
        self._check_at = now + self._stale / CHECKS
        is_over = now >= self._kill_at
        if is_over:
            self._kill_at = now + KILL_SECONDS
        for child in self._children.values():
            number = signal.SIGKILL if is_over else child.watch.check()
            if number is not None:
                why = "has not ended in time" if is_over else "shows no life"
                logger.error("worker process %d (pid %d) %s; the supervisor ends it", child.number, child.pid, why)
                os.kill(child.pid, number)

    def quiet(self) -> None:
        """Let the workers and their replacements claim nothing more."""
        self._quiet = True
        self._forward(QUIET)

    def stop(self) -> None:
        """Let the workers drain; when called again, let them exit at once."""
        self._stops += 1
        self._wakeup.set()

    def hurry(self) -> None:
        """Let the workers exit at once."""
        self._stops += 2
        self._wakeup.set()

    def _forward(self, number: signal.Signals) -> None:
        self._to_forward.append(number)
        self._wakeup.set()

    def _send(self, number: signal.Signals) -> None:
        for pid in self._children:
            os.kill(pid, number)

    def _start(self, number: int, backoff: float) -> None:
        """Fork a worker. Close all connections first, or parent and child would share them."""
        connections.close_all()
        supervisor, heartbeat = os.getpid(), self._heartbeats[number - 1]
        self.loop_heartbeats[number - 1].reset()
        heartbeat.reset()
        child = Child(number, uuid7(), 0, time.monotonic(), backoff, LifeWatch(heartbeat))
        with signals_held():  # until the child has replaced the handlers that it inherits
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", DeprecationWarning)  # the health monitor's thread holds no lock of ours
                try:
                    pid = os.fork()
                except OSError as error:  # no memory, or too many processes; the other workers continue
                    logger.error("worker process %d cannot be started: %s", number, error)  # noqa: TRY400
                    self._schedule_restart(child)
                    return
            if pid == 0:
                self._run_child(number, child.worker_id, supervisor)
        child.pid = pid
        self._children[pid] = child

    def _run_child(self, number: int, worker_id: uuid.UUID, supervisor: int) -> NoReturn:
        code = int(Exit.CRASHED)
        try:
            leave_group_of_parent()
            console.number(number)
            options = replace(self.options, name=numbered_name(self.options.name, number))
            worker = Worker(options, self._transport, worker_id, supervisor)
            worker.loop_heartbeat = self.loop_heartbeats[number - 1]
            worker.guard.heartbeat = self._heartbeats[number - 1]
            if self._quiet:
                worker.quiet()
            code = int(worker.run())
            if code != Exit.OK or not worker.is_signalled:
                code += DONE
        except Exception:
            logger.exception("worker process %d failed", number)
        finally:
            os._exit(code)

    def _on_ended(self, child: Child, code: int) -> None:
        """Record how a child ended, and give back its tasks unless it did so itself."""
        if code == DONE or (code == Exit.OK and self._stops):
            return
        if is_own := code > DONE:
            code -= DONE
        if not is_own or code not in (Exit.LOST, Exit.GAVE_BACK, Exit.REPLACE):
            name = numbered_name(self.options.name, child.number)
            logger.error("worker %s (process %d, pid %d) %s", name, child.number, child.pid, _how(code))
            self._mark_dead(child.worker_id)
        if self._stops:
            self._worst = max(self._worst, Exit(code) if code in list(Exit) else Exit.CRASHED)
            return
        self._schedule_restart(child)

    def _mark_dead(self, worker_id: uuid.UUID) -> None:
        try:
            self._transport.mark_dead(worker_id)
        except DatabaseError as error:
            reason = in_one_line(error)
            logger.warning("the tasks of worker %s wait for the scheduler to return them: %s", worker_id, reason)
        finally:
            connections.close_all()

    def _schedule_restart(self, child: Child) -> None:
        """Schedule a replacement: at once, or after a delay that doubles each time a child dies young."""
        lived = time.monotonic() - child.started_at
        delay = max(MIN_BACKOFF_SECONDS, 2 * child.backoff)
        child.backoff = 0.0 if lived >= STABLE_SECONDS else min(MAX_BACKOFF_SECONDS, delay)
        self._restarts.append((time.monotonic() + child.backoff, child))

    def _sleep_seconds(self) -> float:
        restarts = [] if self._stops else [at for at, _ in self._restarts]
        return max(0.0, min(self._check_at, self._kill_at, *restarts) - time.monotonic())


def _how(code: int) -> str:
    """Return in words how a child ended that was not asked to."""
    if code == -signal.SIGALRM:
        return "ran no Python code for too long and was ended; its stacks are above"
    return "ended with code 0, but was not asked to" if code == Exit.OK else f"died with code {code}"
