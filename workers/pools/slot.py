"""A slot of the process pool, as the worker sees it, and the process in it."""

import faulthandler
import logging
import os
import select
import signal
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import Any, Final

from django.db import connections

from queue_app.core.process import end_with_parent
from queue_app.exceptions import AttemptLost, IndexUnavailable, Interruption, TaskCancelled, TaskTimeout
from queue_app.index import get_index
from queue_app.workers import progress as capture, stack
from queue_app.workers.context import AttemptStore, ClaimedAttempt, ProgressSink, record_interruption
from queue_app.workers.executor import Executor
from queue_app.workers.lifecycle import close_stdin
from queue_app.workers.outcomes import failed
from queue_app.workers.pools.base import handles_interruption, prepare_slot, release_connections
from queue_app.workers.resources import REPLACE_SHARE, ResourceLimits, resident_bytes
from queue_app.workers.sessions import KEEP_SECONDS, renew, watch_sessions
from queue_app.workers.transport.http import Reader, outcome_form, send, task_of

#: The signal on which a process writes its stack. One that ignores it by default does a new process no harm.
STACK: Final = signal.SIGWINCH
#: Time for the process to begin, and after each part to go on.
STACK_SECONDS: Final = 1.0
QUIET_SECONDS: Final = 0.05


class Slot:
    """A process, the connection to it, and the attempt that it runs (``held``)."""

    def __init__(self, connection: socket.socket, stacks: socket.socket) -> None:
        self.connection = connection
        self._stacks = stacks  # where the process writes its stack
        self.reader = Reader(connection)
        self.pid = 0  # unknown until the fork server reports it
        self.handle: int | None = None  # a pidfd: unlike a pid, it is never reused for another process
        self.held: ClaimedAttempt | None = None
        self.since = 0.0
        self.kill_reason = ""
        #: The signal to send as soon as the pid is known, and the attempt that it is meant for.
        self._delayed: tuple[ClaimedAttempt, signal.Signals] | None = None

    def set_pid(self, pid: int) -> None:
        """Record the pid of the process, and send the signal that waits for it."""
        self.pid = pid
        if hasattr(os, "pidfd_open"):
            with suppress(OSError):
                self.handle = os.pidfd_open(pid)
        if self._delayed is not None and self._delayed[0] is self.held:
            self.kill(self._delayed[1])

    def kill(self, number: signal.Signals, reason: str = "") -> None:
        """Send the process a signal, if it lives.

        The attempt may run before the message of the fork server with the pid was read. Then the signal waits for it.
        """
        self.kill_reason = reason or self.kill_reason
        with suppress(ProcessLookupError, OSError):
            if self.handle is not None:
                signal.pidfd_send_signal(self.handle, number)
            elif self.pid:
                os.kill(self.pid, number)
            elif self.held is not None and (self._delayed is None or number == signal.SIGKILL):
                self._delayed = self.held, number

    def stack(self) -> str:
        """Return where the process is now. It writes its calls from the handler of a signal, whatever it does."""
        if not self.pid:
            return "waiting"
        self._read_stack(0.0)  # one that came too late
        self.kill(STACK)
        text = self._read_stack(STACK_SECONDS)
        return stack.as_text(stack.of_dump(text)) if text else "silent"

    def _read_stack(self, seconds: float) -> str:
        text = b""
        with suppress(OSError):  # nothing more comes, or the process has just ended
            self._stacks.settimeout(seconds)
            while part := self._stacks.recv(65536):
                text += part
                self._stacks.settimeout(QUIET_SECONDS)
        return text.decode("utf-8", "replace")

    def close(self) -> None:
        self.connection.close()
        self._stacks.close()
        if self.handle is not None:
            os.close(self.handle)
            self.handle = None


# What a process of the process pool does: run the attempts that the worker sends, one after the other.

#: The signal that raises each interruption in a slot.
SIGNALS: dict[type[Interruption], signal.Signals] = {
    TaskCancelled: signal.SIGUSR1,
    TaskTimeout: signal.SIGUSR2,
    AttemptLost: signal.SIGURG,
}


def ignore_signals(*numbers: signal.Signals) -> None:
    """Ignore signals, because the worker decides when its slots end.

    The handler is not ``SIG_IGN``, which programs that a task starts would inherit.
    """

    def do_nothing(_number: int, _frame: FrameType | None) -> None:
        pass

    for number in numbers:
        signal.signal(number, do_nothing)


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


def run_slot(worker: socket.socket, limits: ResourceLimits, store: AttemptStore, stacks: int) -> None:
    """Run the attempts that the worker sends, until it hangs up or this process has reached a limit."""
    faulthandler.register(STACK, stacks, all_threads=False)
    end_with_parent()
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
    reader, served, last, has_sessions = Reader(worker), 0, False, False
    idle = select.poll()
    idle.register(worker, select.POLLIN)
    while not last:
        if has_sessions and not idle.poll(KEEP_SECONDS * 1000):
            connections.close_all()
        if (messages := reader.receive()) is None:
            break
        renew()
        for message in messages:
            executor.worker_name = message["worker"]
            held = ClaimedAttempt(task_of(message["task"]), time.monotonic(), store)
            outcome = _attempt(executor, held, current)
            served += 1
            last = served == limits.max_tasks or _is_near_memory_limit(limits)
            send(worker, {"outcome": outcome, "last": last})
            has_sessions = release_connections(held)
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
        ignore_signals(signal.SIGTERM, signal.SIGINT, signal.SIGQUIT, signal.SIGHUP)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for number in SIGNALS.values():
            signal.signal(number, interrupt)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())

    reset()
    return reset


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
