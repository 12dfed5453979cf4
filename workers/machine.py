"""CPU and memory that this process and its machine or container have and use. Without Linux's /proc, only its CPU."""

import os
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path


class CpuClock:
    """The CPU time that this process used, and that other processes used or waited for."""

    def __init__(self, pids: Callable[[], Iterable[int]]) -> None:
        self._pids = pids
        self._known: dict[int, float] = {}
        self._process = time.process_time()
        self.since()

    def since(self) -> float:
        """Return the seconds since the last call; of a process that has just begun, those after this call count."""
        process = time.process_time()
        now = {pid: sum(_schedstat(f"/proc/{pid}")) for pid in self._pids()}
        known, self._known = self._known, now
        took, self._process = process - self._process, process
        return took + sum(max(0.0, seconds - known[pid]) for pid, seconds in now.items() if pid in known)


def core_wait(thread: int) -> float:
    """Return the seconds that a thread of this process (its native id) has waited for a core."""
    return _schedstat(f"/proc/self/task/{thread}")[1]


def _schedstat(folder: str) -> tuple[float, float]:
    """Return the seconds on a core, and those waiting for one; zeros without Linux's /proc, or for what has ended."""
    try:
        with open(f"{folder}/schedstat", encoding="ascii") as file:  # noqa: PTH123 - called often
            ran, waited, _slices = file.read().split()
    except (OSError, ValueError):
        return 0.0, 0.0
    return int(ran) / 1e9, int(waited) / 1e9


def cores() -> float:
    """Return the number of cores that this process may use: of the machine, its affinity, and its container."""
    found = float(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1)
    with suppress(OSError, ValueError):
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text(encoding="ascii").split()
        found = min(found, int(quota) / int(period))  # "max": not a number
    return max(found, 0.1)


def memory() -> tuple[int, int]:
    """Return the bytes in use and in all, of the container if it has a limit, else of the machine."""
    with suppress(OSError, ValueError, KeyError):
        folder = Path("/sys/fs/cgroup")
        total = int((folder / "memory.max").read_text(encoding="ascii"))
        cache = _numbers((folder / "memory.stat").read_text(encoding="ascii"))["inactive_file"]
        return int((folder / "memory.current").read_text(encoding="ascii")) - cache, total
    with suppress(OSError, KeyError):
        found = _numbers(Path("/proc/meminfo").read_text(encoding="ascii"))
        return (found["MemTotal:"] - found["MemAvailable:"]) * 1024, found["MemTotal:"] * 1024
    return 0, 1


def _numbers(text: str) -> dict[str, int]:
    return {name: int(number) for name, number, *_ in (line.split() for line in text.splitlines())}
