"""Signals and exit codes."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from enum import IntEnum
from types import FrameType

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
