"""Where the processes of a pool come from.

A worker has threads, and a process with threads must not fork at will. So before it starts
them it forks this one, which has one thread and no connections, and does nothing but fork
slots when it is asked, tell how they ended, and kill them when the worker is gone.
"""

from __future__ import annotations

import ctypes
import gc
import json
import logging
import os
import selectors
import signal
import socket
import sys
import time
import warnings
from collections.abc import Callable
from contextlib import suppress
from types import FrameType
from typing import Any, NoReturn

from django.db import connections

from queue_app.exceptions import IndexUnavailable, Interruption, TaskCancelled, TaskTimeout
from queue_app.index import get_index
from queue_app.workers import capture
from queue_app.workers.context import ClaimedAttempt, note_interruption
from queue_app.workers.executor import Executor
from queue_app.workers.outcomes import failed
from queue_app.workers.rlimits import REPLACE_SHARE, ResourceLimits, resident_bytes
from queue_app.workers.wire import Reader, outcome_form, send, task_of

logger = logging.getLogger("taskqueue")

#: What the worker sends a slot, by what shall be raised in it.
SIGNALS: dict[type[Interruption], signal.Signals] = {
    TaskCancelled: signal.SIGUSR1,
    TaskTimeout: signal.SIGUSR2,
}
#: What an idle slot has to send its last hints when the worker leaves.
LEAVE_SECONDS = 1.0
_DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG


def start_fork_server(limits: ResourceLimits) -> tuple[int, socket.socket]:
    """Fork the fork server; return its pid and the socket to ask it on."""
    ours, theirs = socket.socketpair()
    connections.close_all()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # the worker's own threads come later
        pid = os.fork()
    if pid == 0:
        ours.close()
        _end_with(lambda: _ForkServer(theirs, limits).run())
    theirs.close()
    return pid, ours


def _end_with(function: Callable[[], None]) -> NoReturn:
    code = 1
    try:
        function()
        code = 0
    except BaseException:
        logger.exception("a process of the pool failed")
    finally:
        os._exit(code)


def _deaf(_number: int, _frame: FrameType | None) -> None:
    """Do nothing; the worker decides when its slots end.

    Not ``SIG_IGN``, which the programs that a task starts would inherit.
    """


def _die_with_parent() -> None:
    """Let the system end this process with its parent, where it can (Linux)."""
    if sys.platform == "linux":
        with suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(_DEATH_SIGNAL, signal.SIGKILL)


class _ForkServer:
    def __init__(self, worker: socket.socket, limits: ResourceLimits) -> None:
        self._worker = worker
        self._limits = limits
        self._slots: set[int] = set()

    def run(self) -> None:
        """Fork and collect slots until the worker hangs up."""
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2, signal.SIGCHLD):
            signal.signal(number, _deaf)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        gc.collect()
        gc.freeze()  # what exists by now is never looked at again, and so stays shared with the slots
        wakeup, ringer = socket.socketpair()
        for end in (wakeup, ringer):
            end.setblocking(False)
        signal.set_wakeup_fd(ringer.fileno(), warn_on_full_buffer=False)
        with selectors.DefaultSelector() as selector:
            selector.register(self._worker, selectors.EVENT_READ)
            selector.register(wakeup, selectors.EVENT_READ)
            while True:
                ready = {key.fileobj for key, _ in selector.select()}
                if wakeup in ready:
                    with suppress(BlockingIOError):
                        wakeup.recv(4096)
                self._collect()
                if self._worker in ready and not self._serve():
                    break
        deadline = time.monotonic() + LEAVE_SECONDS
        while self._slots and time.monotonic() < deadline:  # those that are idle end by themselves
            time.sleep(0.01)
            self._collect()
        for pid in self._slots:
            os.kill(pid, signal.SIGKILL)

    def _serve(self) -> bool:
        """Fork a slot that talks on the socket which comes with the request; return false when the worker hung up."""
        try:
            asked, descriptors, _, _ = socket.recv_fds(self._worker, 1, 1)
        except ConnectionError:
            return False
        if not asked:
            return False
        pid = os.fork()
        if pid == 0:
            signal.set_wakeup_fd(-1)
            self._worker.close()
            _end_with(lambda: run_slot(socket.socket(fileno=descriptors[0]), self._limits))
        os.close(descriptors[0])
        self._slots.add(pid)
        self._tell({"born": pid})
        return True

    def _collect(self) -> None:
        for pid in list(self._slots):
            found, status = os.waitpid(pid, os.WNOHANG)
            if found:
                self._slots.discard(pid)
                self._tell({"died": pid, "code": os.waitstatus_to_exitcode(status)})

    def _tell(self, news: dict[str, int]) -> None:
        with suppress(OSError):
            self._worker.sendall(json.dumps(news).encode() + b"\n")


class _Line:
    """The reports of a slot: what the attempt says goes to the worker."""

    def __init__(self, worker: socket.socket) -> None:
        self._worker = worker

    def progress(self, held: ClaimedAttempt, fraction: float, message: str) -> None:
        """Send how far the attempt has come."""
        send(self._worker, {"progress": [fraction, message]})

    def extend(self, held: ClaimedAttempt, seconds: float) -> None:
        """Send how many more seconds it needs."""
        send(self._worker, {"extend": seconds})

    def log(self, held: ClaimedAttempt, line: str) -> None:
        """Send what it logged."""
        send(self._worker, {"log": line})


def run_slot(worker: socket.socket, limits: ResourceLimits) -> None:
    """Run one attempt after the other, as they come, until the worker hangs up or this process has served its time."""
    _die_with_parent()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGQUIT):
        signal.signal(number, _deaf)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    limits.apply()
    capture.install()
    executor = Executor(None, _Line(worker))
    current: list[ClaimedAttempt] = []

    def interrupt(number: int, _frame: FrameType | None) -> None:
        if not current or current[0].interruption is not None:
            return  # the attempt that it was meant for has ended
        kind = next(kind for kind, wanted in SIGNALS.items() if wanted == number)
        note_interruption(current[0], kind)
        if not current[0].shielded:
            raise kind

    for number in SIGNALS.values():
        signal.signal(number, interrupt)
    reader, served, last = Reader(worker), 0, False
    while not last and (messages := reader.receive()) is not None:
        for message in messages:
            held = ClaimedAttempt(task_of(message["task"]), time.monotonic())
            outcome = _attempt(executor, held, current)
            served += 1
            last = served == limits.max_tasks or _is_fat(limits)
            send(worker, {"outcome": outcome, "last": last})
            _look_after_connections()
    connections.close_all()
    with suppress(IndexUnavailable):
        get_index().flush()  # hints of tasks that were enqueued here
    logging.shutdown()


def _attempt(executor: Executor, held: ClaimedAttempt, current: list[ClaimedAttempt]) -> dict[str, Any]:
    began = time.monotonic()
    executor.worker_id = held.task.worker_id
    try:
        try:
            current.append(held)
            outcome = executor.run(held)
        finally:
            current.clear()
    except Interruption as interruption:  # it came while the attempt was ending
        current.clear()
        outcome = failed(held, began, interruption)
    return outcome_form(outcome)


def _is_fat(limits: ResourceLimits) -> bool:
    if limits.max_memory is None:
        return False
    return (resident_bytes(os.getpid()) or 0) > REPLACE_SHARE * limits.max_memory


def _look_after_connections() -> None:
    for connection in connections.all(initialized_only=True):
        try:
            connection.close_if_unusable_or_obsolete()
        except Exception:
            logger.exception("a connection that a task used cannot be closed")
