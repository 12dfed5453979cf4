"""Slots as processes: an attempt can be killed, and a process that has grown is replaced.

What a task does to its process harms no other task: a crash, a leak, a lock that is never
released. It costs a message each way and the memory of a process for each slot.

What the worker asks and what the processes say meet under one lock, and so in one module.
"""

from __future__ import annotations

import json
import logging
import os
import selectors
import signal
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any

from queue_app.core.records import Outcome, TaskFailure
from queue_app.exceptions import Interruption
from queue_app.registry import AnyTask
from queue_app.workers.context import ClaimedAttempt, note_interruption
from queue_app.workers.executor import Executor
from queue_app.workers.outcomes import failed
from queue_app.workers.pools.backlog import BacklogPool
from queue_app.workers.pools.fork_server import LEAVE_SECONDS, SIGNALS, start_fork_server
from queue_app.workers.pools.slot import Slot
from queue_app.workers.rlimits import ResourceLimits, resident_bytes
from queue_app.workers.wire import outcome_of, send, task_form

logger = logging.getLogger("taskqueue")

#: The memory of processes at work is looked at so often.
WATCH_SECONDS = 0.5
WORKER_DIED = "queue_app.exceptions.WorkerDied"


class ProcessPool(BacklogPool):
    """Runs held tasks in order in ``slots`` processes."""

    name = "processes"
    kill_after: float | None = 2.0

    def __init__(self, slots: int, executor: Executor, on_outcome: Callable[[], None], limits: ResourceLimits) -> None:
        super().__init__(slots, on_outcome)
        self._reports = executor.reports
        self._limits = limits
        self._slots: set[Slot] = set()
        self._unborn: deque[Slot] = deque()  # asked for, and not yet answered
        self._selector = selectors.DefaultSelector()
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="pool", daemon=True)
        self._fork_server: socket.socket
        self._fork_server_pid = 0
        self._news = b""

    def can_run(self, task: AnyTask) -> bool:
        """Whether a task may run here: coroutine functions too, on an event loop of their own."""
        return True

    # -- what the worker's loop asks ---------------------------------------------

    def start(self) -> None:
        """Fork the fork server and ask it for all slots; no thread of the worker may run yet."""
        self._fork_server_pid, self._fork_server = start_fork_server(self._limits)
        self._selector.register(self._fork_server, selectors.EVENT_READ)
        for _ in range(self.slots):
            self._ask_for_slot()
        self._thread.start()

    def interrupt(self, held: ClaimedAttempt, interruption: type[Interruption]) -> bool:
        """Raise ``interruption`` in the process that runs this attempt; it ends system calls that wait, too."""
        with self._lock:
            for slot in self._slots:
                if slot.held is held and held.interruption is None:
                    note_interruption(held, interruption)
                    if slot.pid:
                        slot.kill(SIGNALS[interruption])
                    else:  # it runs already, but the fork server's word of it was not read yet
                        slot.owed = held, SIGNALS[interruption]
                    return True
        return False

    def abandon(self, held: ClaimedAttempt, error: Interruption) -> Outcome | None:
        """Kill the process that runs this attempt; another takes its place."""
        with self._lock:
            for slot in self._slots:
                if slot.held is held:
                    slot.held = None
                    slot.kill(signal.SIGKILL, "it did not end when it was asked to")
                    self._drop(slot)
                    return failed(held, slot.since, error)
        return None

    def stop(self) -> None:
        """End all processes; the tasks of those that are killed are given back by the caller."""
        if self._stopping:
            return
        with self._lock:
            self._stopping = True
            for slot in list(self._slots):
                if slot.held is not None:
                    slot.kill(signal.SIGKILL, "the worker leaves")
                    slot.held = None
                self._drop(slot)
            with suppress(OSError):
                self._fork_server.shutdown(socket.SHUT_RDWR)
        self._thread.join(timeout=LEAVE_SECONDS)  # woken by the fork server's line
        for line in [self._fork_server, *(slot.line for slot in self._unborn)]:
            line.close()
        with suppress(ChildProcessError):
            os.waitpid(self._fork_server_pid, 0)
        self._selector.close()

    # -- slots --------------------------------------------------------------------

    def _ask_for_slot(self) -> None:
        ours, theirs = socket.socketpair()
        slot = Slot(ours)
        try:
            socket.send_fds(self._fork_server, [b"F"], [theirs.fileno()])
        except OSError:
            if not self._stopping:
                logger.critical("the pool cannot start processes any more; the worker ends")
                os._exit(1)  # the supervisor starts another worker, and the scheduler returns the tasks
        finally:
            theirs.close()
        self._slots.add(slot)
        self._unborn.append(slot)
        self._selector.register(ours, selectors.EVENT_READ, slot)

    def _drop(self, slot: Slot) -> None:
        """Forget a process, and ask for another."""
        self._slots.discard(slot)
        with suppress(KeyError, ValueError):
            self._selector.unregister(slot.line)
        if slot not in self._unborn:
            slot.close()
        if not self._stopping:
            self._ask_for_slot()

    def _fill(self) -> None:
        """Give what waits to slots that are free; one that is not yet born reads it when it is."""
        if not self._waiting:
            return
        for slot in self._slots:
            if slot.held is None and self._waiting:
                slot.held, slot.since = self._waiting.popleft(), time.monotonic()
                with suppress(OSError):  # it has died: seen when its line is read
                    send(slot.line, {"task": task_form(slot.held.task)})

    def _begun(self) -> Iterable[tuple[ClaimedAttempt, float]]:
        return [(slot.held, slot.since) for slot in self._slots if slot.held is not None]

    # -- what slots say -------------------------------------------------------------

    def _run(self) -> None:
        while not self._stopping:
            ready = self._selector.select(WATCH_SECONDS if self._limits.max_memory else None)
            with self._lock:
                if self._is_over():
                    return
                for key, _ in ready:
                    if key.data is None:
                        self._hear_fork_server()
                    elif key.data in self._slots:
                        with suppress(BlockingIOError):
                            self._hear(key.data)
                self._watch_memory()
                self._fill()

    def _is_over(self) -> bool:
        return self._stopping

    def _hear_fork_server(self) -> None:
        data = b""
        with suppress(OSError):
            data = self._fork_server.recv(65536)
        *lines, self._news = (self._news + data).split(b"\n")
        if not data:
            logger.critical("the process that starts others is gone; the worker ends")
            os._exit(1)
        for line in lines:
            news = json.loads(line)
            if "born" in news:
                self._born(self._unborn.popleft(), news["born"])
            else:
                self._died(news["died"], news["code"])

    def _born(self, slot: Slot, pid: int) -> None:
        slot.pid = pid
        if hasattr(os, "pidfd_open"):
            with suppress(OSError):
                slot.handle = os.pidfd_open(pid)
        if slot.owed is not None and slot.owed[0] is slot.held:
            slot.kill(slot.owed[1])
        if slot not in self._slots:  # dropped before it was born
            slot.kill(signal.SIGKILL)
            slot.close()

    def _died(self, pid: int, code: int) -> None:
        """Report what a process ran that has ended by itself, or by somebody's hand."""
        for slot in list(self._slots):
            if slot.pid == pid:
                with suppress(BlockingIOError):  # a process that it started holds its end of the line
                    while slot in self._slots and self._hear(slot):
                        pass  # what it said before
                self._lose(slot, code)

    def _hear(self, slot: Slot) -> bool:
        """Act on what a slot says; return false when it has hung up, of which the fork server tells the reason."""
        messages = slot.reader.receive(socket.MSG_DONTWAIT)
        if messages is None:
            with suppress(KeyError, ValueError):
                self._selector.unregister(slot.line)
            return False
        for message in messages:
            self._act(slot, message)
        return True

    def _act(self, slot: Slot, message: dict[str, Any]) -> None:
        held = slot.held
        if held is None:
            return
        match message:
            case {"outcome": form, "last": last}:
                slot.held = None
                self._outcomes.append(outcome_of(form, held, slot.since, time.monotonic()))
                if last:
                    self._drop(slot)
                self._on_outcome()
            case {"progress": [fraction, text]}:
                self._reports.progress(held, fraction, text)
            case {"extend": seconds}:
                held.extended += seconds
                self._reports.extend(held, seconds)
            case {"log": line}:
                self._reports.log(held, line)

    def _lose(self, slot: Slot, code: int) -> None:
        if slot not in self._slots:
            return
        held, slot.held = slot.held, None
        self._drop(slot)
        if held is None:
            return
        how = f"died of {signal.Signals(-code).name}" if code < 0 else f"ended with code {code}"
        why = f": {slot.why}" if slot.why else ""
        message = f"The process that ran the attempt {how}{why}."
        logger.error("%s %s: %s", held.task.task_type, held.task.id, message)
        failure = TaskFailure(WORKER_DIED, message, "")
        self._outcomes.append(
            Outcome(held.task, held.row_time(slot.since), held.row_time(time.monotonic()), failure=failure)
        )
        self._on_outcome()

    def _watch_memory(self) -> None:
        most = self._limits.max_memory
        if most is None:
            return
        for slot in self._slots:
            if slot.held is not None and slot.pid and (resident_bytes(slot.pid) or 0) > most:
                slot.kill(signal.SIGKILL, f"it used more than the {most // 1024**2} MiB of --max-memory")
