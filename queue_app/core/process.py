"""Identities of processes that stay unique when the system reuses a pid, and their end with their parent."""

import ctypes
import math
import signal
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Final

#: Position of the start time (field 22) in /proc/PID/stat, counted from the field after the command (field 2).
_START_TIME: Final = 19
_DEATH_SIGNAL: Final = 1  # PR_SET_PDEATHSIG


def machine_identity() -> str:
    """Return boot id and pid namespace, equal for processes that can see each other; empty if unknown."""
    try:
        return _machine()
    except OSError:
        return ""


def process_identity(pid: int) -> str:
    """Return boot id, pid namespace, pid and start time, as far as the platform provides them."""
    return f"{machine_identity() or '::'}{pid}:{_start_time(pid)}"


def end_with_parent() -> None:
    """Let the kernel kill this process when its parent ends (Linux only)."""
    if sys.platform == "linux":
        with suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(_DEATH_SIGNAL, signal.SIGKILL)


@cache  # an error is not kept
def _machine() -> str:
    return f"{_read('/proc/sys/kernel/random/boot_id').strip()}:{Path('/proc/self/ns/pid').readlink()}:"


def _start_time(pid: int) -> str:
    """Return the start time in clock ticks since boot; empty for a missing process or a zombie."""
    try:
        state, *fields = _read(f"/proc/{pid}/stat").rpartition(")")[2].split()  # the command may contain spaces
    except OSError:
        return ""
    return "" if state in {"Z", "X"} else fields[_START_TIME - 1]


def _read(path: str) -> str:
    with open(path, "rb", buffering=0) as file:  # noqa: PTH123 - every second for each process of the machine
        return file.read().decode(errors="replace")


# Repeat slow queries less often, so that each takes at most a hundredth of the time.
#
# Such a query reads an index of the few rows that are in some state now. While one transaction keeps an old snapshot
# open, PostgreSQL cannot remove the entries of rows that have left the state, and the query reads them too.

#: Length of a pause, as a multiple of the time that the query took.
FACTOR: Final = 100


class QueryPauses:
    """The pauses of queries, by name; ``clock`` returns monotonic seconds.

    Pauses that are shorter than ``interval``, after which the queries are repeated anyway, are left out.
    """

    def __init__(self, interval: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._interval = interval
        self._clock = clock
        self._until: dict[str, float] = {}

    def __contains__(self, name: str) -> bool:
        """Whether the query pauses now."""
        return self._clock() < self._until.get(name, -math.inf)

    def begin(self, name: str, seconds: float) -> None:
        """Begin the pause of a query that took this long."""
        if FACTOR * seconds > self._interval:
            self._until[name] = self._clock() + FACTOR * seconds
