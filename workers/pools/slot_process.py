"""What a process of the process pool does: run the attempts that the worker sends, one after the other."""

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
from typing import Any

from django.db import connections

from queue_app.core.process import end_with_parent
from queue_app.exceptions import AttemptLost, IndexUnavailable, Interruption, TaskCancelled, TaskTimeout
from queue_app.index import get_index
from queue_app.workers import capture
from queue_app.workers.context import AttemptStore, ClaimedAttempt, ProgressSink, record_interruption
from queue_app.workers.executor import Executor
from queue_app.workers.lifecycle import close_stdin
from queue_app.workers.outcomes import failed
from queue_app.workers.pools.base import handles_interruption, prepare_slot, release_connections
from queue_app.workers.rlimits import REPLACE_SHARE, ResourceLimits, resident_bytes
from queue_app.workers.sessions import KEEP_SECONDS, renew, watch_sessions
from queue_app.workers.wire import Reader, outcome_form, send, task_of

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


def run_slot(worker: socket.socket, limits: ResourceLimits, store: AttemptStore) -> None:
    """Run the attempts that the worker sends, until it hangs up or this process has reached a limit."""
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
