"""The process that forks the slots of a process pool, and what a slot does.

A worker has threads, and a process with threads must not fork. So before it starts its threads, the worker forks this
process, which has one thread and no connections. It forks slots on request, reports how they ended, and kills them
when the worker is gone.
"""

import ctypes
import gc
import json
import logging
import os
import selectors
import signal
import socket
import sys
import threading
import time
import warnings
from collections.abc import Callable
from contextlib import suppress
from contextvars import Context
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

from django.db import connections

from queue_app.exceptions import IndexUnavailable, Interruption, TaskCancelled, TaskTimeout
from queue_app.index import get_index
from queue_app.workers import capture
from queue_app.workers.context import ClaimedAttempt, History, ProgressSink, record_interruption
from queue_app.workers.executor import Executor
from queue_app.workers.lifecycle import close_stdin
from queue_app.workers.outcomes import failed
from queue_app.workers.pools.base import handles_interruption, prepare_slot, release_connections
from queue_app.workers.rlimits import REPLACE_SHARE, ResourceLimits, resident_bytes
from queue_app.workers.sessions import watch_sessions
from queue_app.workers.wire import Reader, outcome_form, send, task_of

logger = logging.getLogger("taskqueue")

#: The signal that raises each interruption in a slot.
SIGNALS: dict[type[Interruption], signal.Signals] = {TaskCancelled: signal.SIGUSR1, TaskTimeout: signal.SIGUSR2}
#: Time for idle slots to send their last notifications to the index when the worker exits.
LEAVE_SECONDS = 1.0
_DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG


def start_fork_server(limits: ResourceLimits, history: History) -> tuple[int, socket.socket]:
    """Fork the fork server; return its pid and the socket for requests."""
    ours, theirs = socket.socketpair()
    connections.close_all()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # the worker starts its threads later
        pid = os.fork()
    if pid == 0:
        ours.close()
        _exit_after(lambda: _ForkServer(theirs, limits, history).run())
    theirs.close()
    return pid, ours


def _exit_after(function: Callable[[], None]) -> NoReturn:
    code = 1
    try:
        function()
        code = 0
    except BaseException:
        logger.exception("a process of the pool failed")
    finally:
        os._exit(code)


def _ignore_signals(*numbers: signal.Signals) -> None:
    """Ignore signals, because the worker decides when its slots end.

    The handler is not ``SIG_IGN``, which programs that a task starts would inherit.
    """

    def do_nothing(_number: int, _frame: FrameType | None) -> None:
        pass

    for number in numbers:
        signal.signal(number, do_nothing)


class _ForkServer:
    def __init__(self, worker: socket.socket, limits: ResourceLimits, history: History) -> None:
        self._worker = worker
        self._limits = limits
        self._history = history
        self._slots: set[int] = set()

    def run(self) -> None:
        """Fork slots, and collect those that ended, until the worker hangs up."""
        _ignore_signals(signal.SIGTERM, signal.SIGINT, signal.SIGQUIT, signal.SIGCHLD, *SIGNALS.values())
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        gc.collect()
        gc.freeze()  # the collector no longer touches existing objects, so their pages stay shared with the slots
        signalled, waker = socket.socketpair()
        for end in (signalled, waker):
            end.setblocking(False)
        signal.set_wakeup_fd(waker.fileno(), warn_on_full_buffer=False)
        with selectors.DefaultSelector() as selector:
            selector.register(self._worker, selectors.EVENT_READ)
            selector.register(signalled, selectors.EVENT_READ)
            while True:
                ready = {key.fileobj for key, _ in selector.select()}
                if signalled in ready:
                    with suppress(BlockingIOError):
                        signalled.recv(4096)
                self._collect()
                if self._worker in ready and not self._serve():
                    break
        deadline = time.monotonic() + LEAVE_SECONDS
        while self._slots and time.monotonic() < deadline:  # idle slots end by themselves
            time.sleep(0.01)
            self._collect()
        for pid in self._slots:
            os.kill(pid, signal.SIGKILL)

    def _serve(self) -> bool:
        """Fork a slot that uses the socket which comes with the request; return false if the worker hung up."""
        try:
            request, descriptors, _, _ = socket.recv_fds(self._worker, 1, 1)
        except ConnectionError:
            return False
        if not request:
            return False
        pid = os.fork()
        if pid == 0:
            signal.set_wakeup_fd(-1)
            self._worker.close()
            slot = socket.socket(fileno=descriptors[0])
            # In an empty context, as a thread: attempts get copies, and would share objects such as decimal's context.
            _exit_after(lambda: Context().run(run_slot, slot, self._limits, self._history))
        os.close(descriptors[0])
        self._slots.add(pid)
        self._report({"started": pid})
        return True

    def _collect(self) -> None:
        for pid in list(self._slots):
            found, status = os.waitpid(pid, os.WNOHANG)
            if found:
                self._slots.discard(pid)
                self._report({"died": pid, "code": os.waitstatus_to_exitcode(status)})

    def _report(self, event: dict[str, int]) -> None:
        with suppress(OSError):
            self._worker.sendall(json.dumps(event).encode() + b"\n")


class _SocketReports(ProgressSink):
    """Sends what the attempt reports to the worker."""

    def __init__(self, worker: socket.socket) -> None:
        self._worker = worker

    def progress(self, held: ClaimedAttempt, fraction: float, message: str) -> None:
        send(self._worker, {"progress": [fraction, message]})

    def extend(self, held: ClaimedAttempt, seconds: float) -> None:
        send(self._worker, {"extend": seconds})

    def log(self, held: ClaimedAttempt, line: str) -> None:
        send(self._worker, {"log": line})


def run_slot(worker: socket.socket, limits: ResourceLimits, history: History) -> None:
    """Run the attempts that the worker sends, until it hangs up or this process has reached a limit."""
    _die_with_parent()
    close_stdin()
    limits.apply()
    capture.install()
    watch_sessions()
    prepare_slot()
    executor = Executor(None, _SocketReports(worker))
    current: list[ClaimedAttempt] = []

    def interrupt(number: int, _frame: FrameType | None) -> None:
        if not current:
            return  # the attempt that the signal was meant for has ended
        held = current[0]
        if held.interruption is None:
            record_interruption(held, next(kind for kind, wanted in SIGNALS.items() if wanted == number))
        elif handles_interruption(threading.get_ident()):
            return
        if not held.shielded and held.interruption is not None:
            raise held.interruption

    reset = _process_settings(interrupt)
    reader, served, last = Reader(worker), 0, False
    while not last and (messages := reader.receive()) is not None:
        for message in messages:
            held = ClaimedAttempt(task_of(message["task"]), time.monotonic(), history)
            outcome = _attempt(executor, held, current)
            served += 1
            last = served == limits.max_tasks or _is_near_memory_limit(limits)
            send(worker, {"outcome": outcome, "last": last})
            release_connections(held)
            reset()
    connections.close_all()
    with suppress(IndexUnavailable):
        get_index().flush()  # notifications about tasks that were enqueued here
    logging.shutdown()


def _process_settings(interrupt: Callable[[int, FrameType | None], None]) -> Callable[[], None]:
    """Set signal handlers; return a function that restores what tasks change: handlers, timer, directory, umask."""
    umask = os.umask(0)
    try:
        folder = Path.cwd()
    except OSError:  # it was deleted
        folder = Path("/")

    def reset() -> None:
        os.umask(umask)
        with suppress(OSError):  # the task deleted the directory
            os.chdir(folder)
        signal.setitimer(signal.ITIMER_REAL, 0)
        _ignore_signals(signal.SIGTERM, signal.SIGINT, signal.SIGQUIT)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for number in SIGNALS.values():
            signal.signal(number, interrupt)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())

    reset()
    return reset


def _die_with_parent() -> None:
    """Let the system kill this process when its parent ends (Linux only)."""
    if sys.platform == "linux":
        with suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(_DEATH_SIGNAL, signal.SIGKILL)


def _attempt(executor: Executor, held: ClaimedAttempt, current: list[ClaimedAttempt]) -> dict[str, Any]:
    began = time.monotonic()
    executor.worker_id = held.task.worker_id
    try:
        try:
            current.append(held)
            outcome = executor.run(held)
        finally:
            current.clear()
    except Interruption as interruption:  # it arrived while the attempt was ending
        current.clear()
        outcome = failed(held, began, interruption)
    return outcome_form(outcome)


def _is_near_memory_limit(limits: ResourceLimits) -> bool:
    if limits.max_memory is None:
        return False
    return (resident_bytes(os.getpid()) or 0) > REPLACE_SHARE * limits.max_memory
