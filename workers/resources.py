"""CPU and memory that this process and its machine or container have and use. Without Linux's /proc, only its CPU."""

import os
import resource
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from queue_app.core.records import Usage
from queue_app.exceptions import InvalidTaskData, near_matches

# Limits of the processes of a process pool: when a process is replaced or killed, and its ``setrlimit`` values.

#: Names of the system's limits, as in ``ulimit`` and setrlimit(2).
RESOURCES: Final = {
    name.removeprefix("RLIMIT_").lower(): getattr(resource, name)
    for name in dir(resource)
    if name.startswith("RLIMIT_")
}
_UNITS: Final = {"k": 1024, "m": 1024**2, "g": 1024**3}
#: Share of ``max_memory`` above which a process is replaced after its task, before the next task exceeds the limit.
REPLACE_SHARE: Final = 0.75


@dataclass(frozen=True, slots=True, kw_only=True)
class ResourceLimits:
    """Limits of each process of ``--pool processes``."""

    max_tasks: int | None = None  # number of tasks after which the process is replaced
    max_memory: int | None = None  # bytes of resident memory above which the process is killed
    rlimits: tuple[tuple[str, int], ...] = ()  # (name, value) for setrlimit(2)

    def apply(self) -> None:
        """Set the resource limits of this process, soft and hard."""
        for name, value in self.rlimits:
            _, hard = resource.getrlimit(RESOURCES[name])
            limit = value if hard == resource.RLIM_INFINITY else min(value, hard)
            resource.setrlimit(RESOURCES[name], (limit, limit))

    @property
    def any(self) -> bool:
        return self != ResourceLimits()


def parse_rlimit(text: str) -> tuple[str, int]:
    """Return (name, value) of text like ``nofile=1024`` or ``as=2G``; raise ``InvalidTaskData``."""
    name, _, value = text.partition("=")
    name, value = name.strip().lower(), value.strip().lower()
    if name not in RESOURCES:
        near = near_matches(name, RESOURCES)
        hint = f" Did you mean {near[0]!r}?" if near else ""
        known = ", ".join(sorted(RESOURCES))
        raise InvalidTaskData("rlimit", f"this system has no limit {name!r}.{hint} Known: {known}.")
    unit = _UNITS.get(value[-1:], 1)
    digits = value[:-1] if unit > 1 else value
    if not digits.isascii() or not digits.isdigit() or len(digits) > 15:  # noqa: PLR2004
        raise InvalidTaskData("rlimit", f"{text!r} needs a whole number, like nofile=1024 or as=2G.")
    return name, int(digits) * unit


def resident_bytes(pid: int) -> int | None:
    """Return the resident memory of a process; ``None`` on systems without Linux's /proc."""
    try:
        with open(f"/proc/{pid}/statm", encoding="ascii") as file:  # noqa: PTH123 - called often, for every process
            return int(file.read().split()[1]) * resource.getpagesize()
    except (OSError, IndexError, ValueError):
        return None


# What a worker uses of its machine: processor time and memory, for the heartbeat.

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
