"""Limits of the processes of a process pool: when a process is replaced or killed, and its ``setrlimit`` values."""

import resource
from dataclasses import dataclass
from typing import Final

from queue_app.exceptions import InvalidTaskData, near_matches

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
