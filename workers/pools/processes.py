"""Slots as processes: an attempt can be killed, and a process that has grown is replaced.

A task cannot harm other tasks with what it does to its process: a crash, a leak, a lock that is never
released. This costs a message each way and the memory of a process for each slot.

The calls of the worker's loop and the messages of the processes meet under one lock, so they stand in one module.
"""

import json
import logging
import os
import selectors
import signal
import socket
import time
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any, NoReturn

from queue_app.core.records import WORKER_DIED, TaskFailure
from queue_app.exceptions import Interruption
from queue_app.workers.context import LOCAL_STORE, AttemptStore, ClaimedAttempt
from queue_app.workers.executor import Executor
from queue_app.workers.lifecycle import essential_thread
from queue_app.workers.pools.base import BacklogPool
from queue_app.workers.pools.fork_server import LEAVE_SECONDS, start_fork_server
from queue_app.workers.pools.slot import SIGNALS, Slot
from queue_app.workers.resources import ResourceLimits, resident_bytes
from queue_app.workers.transport.http import outcome_of, send, task_form

logger = logging.getLogger("taskqueue")

#: Time between two checks of the memory of busy processes.
WATCH_SECONDS = 0.5


class ProcessPool(BacklogPool):
    """Runs claimed tasks in order in ``slots`` processes."""

    name = "processes"
    can_kill = True
    kill_after: float | None = 2.0
    repeat_after: float | None = 0.5

    def __init__(
        self,
        slots: int,
        executor: Executor,
        on_outcome: Callable[[], None],
        limits: ResourceLimits,
        store: AttemptStore = LOCAL_STORE,
    ) -> None:
        super().__init__(slots, executor, on_outcome)
        self._reports = executor.reports
        self._limits = limits
        self._store = store
        self._slots: set[Slot] = set()
        self._requested: deque[Slot] = deque()  # processes that the fork server has not yet reported
        self._selector = selectors.DefaultSelector()
        self._stopping = False
        self._thread = essential_thread(self._run, "pool")
        self._fork_server: socket.socket
        self._fork_server_pid = 0
        self._partial_line = b""

    # -- what the worker's loop asks ---------------------------------------------

    def start(self) -> None:
        """Start the fork server and request all slots; the worker must have no threads yet."""
        self._fork_server_pid, self._fork_server = start_fork_server(self._limits, self._store)
        self._selector.register(self._fork_server, selectors.EVENT_READ)
        self.resize(self.slots)
        self._thread.start()

    def _resized(self) -> None:
        while len(self._slots) < self.slots:
            self._request_slot()
        idle = [slot for slot in self._slots if slot.held is None]
        for slot in idle[: len(self._slots) - self.slots]:
            self._drop(slot)

    def _raise(self, slot: Slot, held: ClaimedAttempt, interruption: type[Interruption]) -> None:
        """Send the process the signal of the interruption; it ends blocking system calls, too."""
        slot.kill(SIGNALS[interruption])

    @property
    def pids(self) -> list[int]:
        with self._lock:
            return [slot.pid for slot in self._slots if slot.pid]

    def _stack(self, slot: Slot) -> str:
        return slot.stack()

    def _abandon(self, slot: Slot, held: ClaimedAttempt) -> float:
        slot.held = None
        slot.kill(signal.SIGKILL, "it did not end when it was asked to")
        self._drop(slot)
        return slot.since

    def _slot_of(self, held: ClaimedAttempt) -> Slot | None:
        return next((slot for slot in self._slots if slot.held is held), None)

    def stop(self) -> None:
        """Kill all processes. The caller gives back the tasks that still run."""
        if self._stopping:
            return
        with self._lock:
            self._stopping = True
            for slot in list(self._slots):
                if slot.held is not None:
                    slot.kill(signal.SIGKILL, "the worker exits")
                    slot.held = None
                self._drop(slot)
            with suppress(OSError):
                self._fork_server.shutdown(socket.SHUT_RDWR)  # wakes the thread
        self._thread.join(timeout=LEAVE_SECONDS)
        for connection in [self._fork_server, *(slot.connection for slot in self._requested)]:
            connection.close()
        with suppress(ChildProcessError):
            os.waitpid(self._fork_server_pid, 0)
        self._selector.close()

    # -- slots --------------------------------------------------------------------

    def _request_slot(self) -> None:
        ours, theirs = socket.socketpair()
        stacks, writes = socket.socketpair()
        writes.setblocking(False)  # a task never waits for the reader
        slot = Slot(ours, stacks)
        try:
            socket.send_fds(self._fork_server, [b"F"], [theirs.fileno(), writes.fileno()])
        except OSError:
            if not self._stopping:
                self._end_worker()
        finally:
            theirs.close()
            writes.close()
        self._slots.add(slot)
        self._requested.append(slot)
        self._selector.register(ours, selectors.EVENT_READ, slot)

    @staticmethod
    def _end_worker() -> NoReturn:
        """End the worker at once: its supervisor starts another, and the scheduler gives back its tasks."""
        logger.critical("the fork server is gone; the worker exits")
        os._exit(1)

    def _drop(self, slot: Slot) -> None:
        """Forget a process, and request another unless there are enough."""
        self._slots.discard(slot)
        self._unregister(slot)
        if slot not in self._requested:
            slot.close()
        if not self._stopping and len(self._slots) < self.slots:
            self._request_slot()

    def _unregister(self, slot: Slot) -> None:
        with suppress(KeyError, ValueError):
            self._selector.unregister(slot.connection)

    def _fill(self) -> None:
        """Send waiting tasks to free slots; a process that has not started yet reads its task when it has."""
        if not self._waiting:
            return
        for slot in self._slots:
            if slot.held is None and self._waiting:
                slot.held, slot.since = self._waiting.popleft(), time.monotonic()
                with suppress(OSError):  # the process has died; the pool notices when it reads the connection
                    send(slot.connection, {"task": task_form(slot.held.task), "worker": self._executor.worker_name})

    def _started(self) -> Iterable[tuple[ClaimedAttempt, float]]:
        return [(slot.held, slot.since) for slot in self._slots if slot.held is not None]

    # -- messages of the processes ----------------------------------------------------

    def _run(self) -> None:
        while True:
            ready = self._selector.select(WATCH_SECONDS if self._limits.max_memory else None)
            with self._lock:
                if self._stopping:
                    return
                for key, _ in ready:
                    if key.data is None:
                        self._read_fork_server()
                    elif key.data in self._slots:
                        self._read_or_kill(key.data)
                self._watch_memory()
                self._fill()

    def _read_fork_server(self) -> None:
        data = b""
        with suppress(OSError):
            data = self._fork_server.recv(65536)
        if not data:
            self._end_worker()
        *lines, self._partial_line = (self._partial_line + data).split(b"\n")
        for line in lines:
            event = json.loads(line)
            if "started" in event:
                self._on_started(self._requested.popleft(), event["started"])
            else:
                self._on_died(event["died"], event["code"])

    def _on_started(self, slot: Slot, pid: int) -> None:
        slot.set_pid(pid)
        if slot not in self._slots:  # dropped before the fork server had started it
            slot.kill(signal.SIGKILL)
            slot.close()

    def _on_died(self, pid: int, code: int) -> None:
        """Handle the end of a process that this pool has not ended."""
        for slot in list(self._slots):
            if slot.pid == pid:
                with suppress(
                    Exception
                ):  # a process that it started still has the connection open, or it sent nonsense
                    while slot in self._slots and self._read(slot):
                        pass  # the messages that it sent before
                self._report_death(slot, code)

    def _read_or_kill(self, slot: Slot) -> None:
        try:
            self._read(slot)
        except BlockingIOError:
            pass
        except Exception:
            logger.exception("the process %d sent what is no message", slot.pid)
            self._unregister(slot)
            slot.kill(signal.SIGKILL, "a task wrote to its connection")

    def _read(self, slot: Slot) -> bool:
        """Handle the messages of a slot; return false if it hung up. The fork server then reports how it ended."""
        messages = slot.reader.receive(socket.MSG_DONTWAIT)
        if messages is None:
            self._unregister(slot)
            return False
        for message in messages:
            self._handle(slot, message)
        return True

    def _handle(self, slot: Slot, message: dict[str, Any]) -> None:
        held = slot.held
        if held is None:
            return
        match message:
            case {"outcome": form, "last": last}:
                slot.held = None
                self._outcomes.append(outcome_of(form, held, slot.since))
                if last or len(self._slots) > self.slots:
                    self._drop(slot)
                self._on_outcome()
            case {"progress": [fraction, text]}:
                self._reports.progress(held, fraction, text)
            case {"extend": seconds}:
                held.extended += seconds
                self._reports.extend(held, seconds)
            case {"log": line}:
                self._reports.log(held, line)

    def _report_death(self, slot: Slot, code: int) -> None:
        if slot not in self._slots:
            return
        held, slot.held = slot.held, None
        self._drop(slot)
        if held is None:
            return
        how = f"died of {signal.Signals(-code).name}" if code < 0 else f"ended with code {code}"
        reason = f": {slot.kill_reason}" if slot.kill_reason else ""
        message = f"The process that ran the attempt {how}{reason}."
        logger.error("%s %s: %s", held.task.task_type, held.task.id, message)
        self._outcomes.append(held.outcome(slot.since, failure=TaskFailure(WORKER_DIED, message, "")))
        self._on_outcome()

    def _watch_memory(self) -> None:
        maximum = self._limits.max_memory
        if maximum is None:
            return
        for slot in self._slots:
            if slot.held is not None and slot.pid and (resident_bytes(slot.pid) or 0) > maximum:
                slot.kill(signal.SIGKILL, f"it used more than the {maximum // 1024**2} MiB of --max-memory")
