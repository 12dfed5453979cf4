"""What a worker uses of its machine: processor time and memory, for the heartbeat."""

import os
import resource
import time
from collections.abc import Callable, Iterable
from typing import Final

from queue_app.core.records import Usage
from queue_app.workers.rlimits import resident_bytes

_TICKS: Final = os.sysconf("SC_CLK_TCK")
#: Fields of /proc/PID/stat after the name: user and system time, in ticks.
_USER, _SYSTEM = 11, 12


class UsageMeter:
    """Measures this process and those of its pool between two readings; needs no library."""

    def __init__(self, pids: Callable[[], Iterable[int]] = tuple) -> None:
        self._pids = pids
        self._at = time.monotonic()
        self._seconds: dict[int, float] = {}
        self.read()

    def read(self) -> Usage:
        """Return the processor time since the last reading, in percent of one core, and the resident memory.

        Pages that processes share are counted in each. Without Linux's /proc the memory is unknown, and the processor
        time is that of this process.
        """
        own = os.getpid()
        now, pids = time.monotonic(), {own, *self._pids()}
        seconds = {pid: used for pid in pids if (used := _cpu_seconds(pid)) is not None}
        if not seconds:
            mine = resource.getrusage(resource.RUSAGE_SELF)
            seconds = {own: mine.ru_utime + mine.ru_stime}
        # a process that was not there at the last reading has started since then
        spent = sum(max(0.0, used - self._seconds.get(pid, 0.0)) for pid, used in seconds.items())
        elapsed = max(now - self._at, 1e-3)
        self._at, self._seconds = now, seconds
        memory = [size for pid in pids if (size := resident_bytes(pid)) is not None]
        return Usage(round(100 * spent / elapsed, 1), sum(memory) if memory else None)


def _cpu_seconds(pid: int) -> float | None:
    """Return the processor time of a process; ``None`` if it is gone, or without Linux's /proc."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:  # noqa: PTH123 - for every process
            fields = file.read().rpartition(")")[2].split()
        return (int(fields[_USER]) + int(fields[_SYSTEM])) / _TICKS
    except (OSError, IndexError, ValueError):
        return None
