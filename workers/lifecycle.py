"""Signals and exit codes."""

from __future__ import annotations

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
from typing import Any

from django.db import connections
from django.db.backends.signals import connection_created

from queue_app.workers.context import ClaimedAttempt

#: What a supervisor sends its children in place of a second SIGTERM: service managers send
#: SIGTERM to every process of a group, and that and the supervisor's own would make two.
HURRY = signal.SIGQUIT
#: Asks for a list of what runs, with stacks.
DUMP = signal.SIGUSR1
#: Asks to claim nothing more, without leaving.
QUIET = signal.SIGUSR2
_OURS = (signal.SIGTERM, signal.SIGINT, signal.SIGCHLD, HURRY, DUMP, QUIET)


class Exit(IntEnum):
    """Exit codes of ``runworker`` and ``runscheduler``."""

    OK = 0
    CRASHED = 1
    USAGE = 2
    LOST = 3  # declared dead, or its supervisor is gone
    UNREACHABLE = 4  # PostgreSQL or Redis at start
    GAVE_BACK = 5  # tasks were still running when it had to leave; they are queued again


@contextmanager
def on_signals(handlers: Mapping[signal.Signals, Callable[[], None]]) -> Iterator[None]:
    """Call these handlers for the length of a block; deliver what ``signals_held`` kept back."""

    def handle(number: int, _frame: FrameType | None) -> None:
        handlers[signal.Signals(number)]()

    before = {number: signal.signal(number, handle) for number in handlers}
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _OURS)
    try:
        yield
    finally:
        for number, previous in before.items():
            signal.signal(number, previous)


@contextmanager
def signals_held() -> Iterator[None]:
    """Keep signals back for the length of a block; a process forked in it does until ``on_signals``."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _OURS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def leave_group_of_parent() -> None:
    """Make this forked process deaf to the terminal: a Ctrl-C reaches the supervisor only, which passes it on."""
    os.setpgid(0, 0)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # one that came between fork and setpgid is dropped


#: A wait is made of pieces no longer than this. Python runs a signal's handler between two
#: steps of the main thread: for one that arrives after the last of these and before the
#: thread sleeps, the handler runs, and rings, only when the sleep is over.
PIECE_SECONDS = 1.0


class Wakeup:
    """Wakes the one thread that waits for it; rings before the wait count.

    Not an Event: setting one takes a lock, and a signal handler runs between any two steps
    of the main thread, also while that thread itself holds the lock. ``SimpleQueue.put`` is
    made to be called from there.
    """

    def __init__(self) -> None:
        self._rings: SimpleQueue[None] = SimpleQueue()

    def set(self) -> None:
        """Wake the waiter, now or when it next waits; safe in a signal handler."""
        self._rings.put(None)

    def wait(self, seconds: float | None) -> None:
        """Sleep until the wakeup has rung since the last wait, at most ``seconds``."""
        deadline = math.inf if seconds is None else time.monotonic() + seconds
        while self._rings.empty() and (left := deadline - time.monotonic()) > 0:
            with suppress(Empty):
                self._rings.get(timeout=min(left, PIECE_SECONDS))
                break
        while not self._rings.empty():
            self._rings.get_nowait()


#: The driver's connections that this process has open, in all its threads.
_open: weakref.WeakSet[Any] = weakref.WeakSet()


def _remember(connection: Any, **_: Any) -> None:
    with suppress(TypeError):  # another database's driver
        _open.add(connection.connection)


def forget_connections() -> None:
    """Let go of every connection that a fork inherited, without a word to the server: they are its parent's.

    Their sockets are replaced, so that not even a bug can write to them.
    """
    nowhere = os.open(os.devnull, os.O_RDWR)
    try:
        for raw in list(_open):
            with suppress(Exception):
                os.dup2(nowhere, raw.fileno(), inheritable=False)
    finally:
        os.close(nowhere)
    _open.clear()
    for connection in connections.all(initialized_only=True):
        connection.connection = None
        connection.in_atomic_block = False
        connection.savepoint_ids = []
        connection.run_on_commit = []


@cache
def guard() -> None:
    """See to it, from now on, that processes forked from this one begin without connections."""
    connection_created.connect(_remember, dispatch_uid="queue_app.workers.lifecycle")
    for connection in connections.all(initialized_only=True):
        if connection.connection is not None:
            _remember(connection)
    os.register_at_fork(after_in_child=forget_connections)


STDERR = 2


def dump(name: str, running: Sequence[tuple[ClaimedAttempt, float]], unstarted: int) -> None:
    """Write what runs, and the stack of each thread, to the standard error; safe in a signal handler."""
    lines = [f"worker {name} (pid {os.getpid()}): {len(running)} run, {unstarted} wait for a slot"]
    for held, seconds in running:
        task = held.task
        asked = f", asked to end: {held.interruption.__name__}" if held.interruption else ""
        lines.append(f"  {task.task_type} {task.id} attempt {task.attempt}, {seconds:.1f} of {held.timeout:g} s{asked}")
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    for ident, frame in sys._current_frames().items():  # noqa: SLF001 - there is no other way to see them
        lines.append(f"thread {names.get(ident, ident)}:")
        lines += [line.rstrip() for line in traceback.format_stack(frame)[-30:]]
    with suppress(OSError):
        os.write(STDERR, ("\n".join(lines) + "\n").encode("utf-8", "backslashreplace"))
