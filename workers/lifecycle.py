"""A process of the runtime: its exit, signals, wake-ups, forks, and a dump of what runs."""

from __future__ import annotations

import logging
import math
import os
import signal
import sys
import threading
import time
import traceback
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from enum import IntEnum
from functools import cache
from queue import Empty, SimpleQueue
from types import FrameType
from typing import TYPE_CHECKING, Any

from django.db import connections
from django.db.backends.signals import connection_created

if TYPE_CHECKING:  # its module needs the models, and an end of a process must not
    from queue_app.workers.context import ClaimedAttempt

logger = logging.getLogger("taskqueue")

#: The supervisor sends this to its children in place of a second SIGTERM. A service manager sends SIGTERM to every
#: process of a group; together with the supervisor's own, a child would count two.
HURRY = signal.SIGQUIT
#: Asks for a list of what runs, with stacks.
DUMP = signal.SIGUSR1
#: Asks a worker to claim nothing more and to stay.
QUIET = signal.SIGUSR2
_OURS = (signal.SIGTERM, signal.SIGINT, signal.SIGCHLD, HURRY, DUMP, QUIET)
#: Maximum length of one sleep. Python runs a signal handler between two steps of the main thread. A signal that
#: arrives in the microseconds before the thread falls asleep is handled only after the sleep.
MAX_SLEEP_SECONDS = 5.0
#: Time that threads which tasks have left get to end when the main thread has ended.
THREADS_SECONDS = 5.0
MAX_STACK = 30  # frames of each thread in a dump
STDIN, STDERR = 0, 2


class Exit(IntEnum):
    """Exit codes of ``runworker`` and ``runscheduler``."""

    OK = 0
    CRASHED = 1
    USAGE = 2
    LOST = 3  # the worker was declared dead, or its supervisor is gone
    UNREACHABLE = 4  # PostgreSQL or Redis at start
    GAVE_BACK = 5  # tasks still ran when the worker had to exit; they are queued again
    REPLACE = 6  # a task does not end; another process must take the place of this one


class Shutdown:
    """Set by signals and by other threads, read by the loop."""

    def __init__(self, grace_seconds: float) -> None:
        self.lost = ""  # why the worker lost its tasks: it was declared dead, or its supervisor is gone
        self.draining = False  # claims nothing more, and exits when its tasks have ended
        self.quiet = False  # claims nothing more, and stays
        self.is_stuck = False  # drains, because a task does not end, and does not wait for that task
        self._grace = grace_seconds
        self._at: float | None = None  # monotonic time at which the grace period ends

    def drain(self) -> None:
        """Exit when the running tasks have ended, or when the grace period, counted from the first call, is over."""
        self.draining = True
        if self._at is None:
            self._at = time.monotonic() + self._grace

    def hurry(self) -> None:
        """Exit with the next turn of the loop."""
        self.draining = True
        self._at = min(time.monotonic(), self._at or math.inf)

    def lose(self, why: str) -> None:
        """Exit with the next turn of the loop, because the tasks belong to others now."""
        self.lost = why
        self._at = time.monotonic()

    @property
    def wanted(self) -> bool:
        """Whether the worker exits soon."""
        return self.draining or bool(self.lost)

    @property
    def is_closed(self) -> bool:
        """Whether the worker claims nothing more."""
        return self.draining or self.quiet or bool(self.lost)

    @property
    def is_now(self) -> bool:
        """Whether the worker exits now, even if tasks still run."""
        return bool(self.lost) or self.remaining == 0

    @property
    def remaining(self) -> float | None:
        """Seconds until the grace period is over; ``None`` if the worker does not drain."""
        return None if self._at is None else max(0.0, self._at - time.monotonic())

    @property
    def overdue(self) -> float:
        """Seconds since the grace period was over; 0 before."""
        return 0.0 if self._at is None else max(0.0, time.monotonic() - self._at)

    def code(self, *, failed: bool, gave_back: bool) -> Exit:
        """Return the exit code: an outcome that could not be written comes first, then the reason to exit."""
        if failed:
            return Exit.CRASHED
        if self.lost:
            return Exit.LOST
        if self.is_stuck:
            return Exit.REPLACE
        return Exit.GAVE_BACK if gave_back else Exit.OK


@contextmanager
def on_signals(handlers: Mapping[signal.Signals, Callable[[], None]]) -> Iterator[None]:
    """Call these handlers inside the block; deliver the signals that ``signals_held`` kept back."""

    def handle(number: int, _frame: FrameType | None) -> None:
        handlers[signal.Signals(number)]()

    before = {number: signal.signal(number, handle) for number in handlers}
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _OURS)
    try:
        yield
    finally:
        for number, previous in before.items():
            signal.signal(number, previous)


def on_hangup(handler: Callable[[], None]) -> dict[signal.Signals, Callable[[], None]]:
    """Return the handler for a terminal that is closed; none under ``nohup``, which ignores that signal."""
    return {} if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN else {signal.SIGHUP: handler}


@contextmanager
def signals_held() -> Iterator[None]:
    """Keep signals back inside the block; a process forked in it keeps them back until ``on_signals``."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _OURS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def leave_group_of_parent() -> None:
    """Shield this forked process from Ctrl-C, which then reaches the supervisor only."""
    os.setpgid(0, 0)
    close_stdin()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # drops one that came between fork and setpgid


def essential_thread(target: Callable[[], object], name: str) -> threading.Thread:
    """Return a thread without which the worker must not continue: an error of ``target`` ends the process.

    Such an error is not a task's failure but that of the process: no memory, a recursion limit that a task has lowered.
    The supervisor starts another process, and the tasks count as crashed.
    """

    def run() -> None:
        try:
            target()
        except BaseException:  # noqa: BLE001 - whatever it is, the process cannot continue
            try:
                logger.critical("the thread %s failed; the process ends", name, exc_info=True)
            finally:
                os._exit(Exit.CRASHED)

    return threading.Thread(target=run, name=name, daemon=True)


def end_with_main_thread() -> None:
    """End this process soon after its main thread, also if tasks have left threads that never end."""

    def watch() -> None:
        threading.main_thread().join()
        time.sleep(THREADS_SECONDS)
        os._exit(Exit.OK)

    threading.Thread(target=watch, name="end", daemon=True).start()


def close_stdin() -> None:
    """Let tasks read nothing: the system stops a background process that reads from the terminal."""
    nowhere = os.open(os.devnull, os.O_RDONLY)
    if nowhere != STDIN:
        os.dup2(nowhere, STDIN)
        os.close(nowhere)


class Wakeup:
    """Wakes the one thread that waits for it, also if it was set before the wait.

    This is not an Event because ``Event.set`` takes a lock, and a signal handler may run while the main thread
    holds that lock. ``SimpleQueue.put`` may be called from a signal handler.
    """

    def __init__(self) -> None:
        self._calls: SimpleQueue[None] = SimpleQueue()

    def set(self) -> None:
        """Wake the thread, now or when it next waits; safe in a signal handler."""
        self._calls.put(None)

    def wait(self, seconds: float | None) -> None:
        """Sleep until ``set`` was called since the last wait, for at most ``seconds``."""
        deadline = math.inf if seconds is None else time.monotonic() + seconds
        while self._calls.empty() and (left := deadline - time.monotonic()) > 0:
            with suppress(Empty):
                self._calls.get(timeout=min(left, MAX_SLEEP_SECONDS))
                break
        while not self._calls.empty():
            self._calls.get_nowait()


#: The open connections of this process, in all its threads, as the driver's objects.
_open: weakref.WeakSet[Any] = weakref.WeakSet()


def _remember(connection: Any, **_: Any) -> None:
    with suppress(TypeError):  # another database's driver
        _open.add(connection.connection)


def forget_connections() -> None:
    """Drop the connections that a fork inherited without telling the server: they belong to the parent.

    Their sockets are replaced, so that no code can write to them by mistake; then the driver may close them.
    """
    nowhere = os.open(os.devnull, os.O_RDWR)
    try:
        for raw in list(_open):
            with suppress(Exception):
                os.dup2(nowhere, raw.fileno(), inheritable=False)
                raw.pgconn.finish()
    finally:
        os.close(nowhere)
    _open.clear()
    for connection in connections.all(initialized_only=True):
        connection.connection = None
        connection.in_atomic_block = False
        connection.savepoint_ids = []
        connection.run_on_commit = []


@cache
def guard_forks() -> None:
    """Let processes that are forked from this one start without connections."""
    connection_created.connect(_remember, dispatch_uid="queue_app.workers.lifecycle")
    for connection in connections.all(initialized_only=True):
        if connection.connection is not None:
            _remember(connection)
    os.register_at_fork(after_in_child=forget_connections)


def dump(name: str, running: Sequence[tuple[ClaimedAttempt, float]], unstarted: int) -> None:
    """Write what runs and the stack of each thread to the standard error; safe in a signal handler."""
    lines = [f"worker {name} (pid {os.getpid()}): {len(running)} run, {unstarted} wait for a slot"]
    for held, seconds in running:
        task = held.task
        asked = f", asked to end: {held.interruption.__name__}" if held.interruption else ""
        lines.append(f"  {task.task_type} {task.id} attempt {task.attempt}, {seconds:.1f} of {held.timeout:g} s{asked}")
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    for ident, frame in sys._current_frames().items():  # noqa: SLF001 - the only way to see other threads
        lines.append(f"thread {names.get(ident, ident)}:")
        lines += [line.rstrip() for line in traceback.format_stack(frame)[-MAX_STACK:]]
    with suppress(OSError):
        os.write(STDERR, ("\n".join(lines) + "\n").encode("utf-8", "backslashreplace"))
