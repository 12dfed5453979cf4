"""Identities of processes that stay unique when the system reuses a pid."""

from pathlib import Path
from typing import Final

#: Position of the start time (field 22) in /proc/PID/stat, counted from the field after the command (field 2).
_START_TIME: Final = 19


def machine_identity() -> str:
    """Return boot id and pid namespace, equal for processes that can see each other; empty if unknown."""
    boot, namespace = _read("/proc/sys/kernel/random/boot_id"), _namespace()
    return f"{boot}:{namespace}:" if boot and namespace else ""


def process_identity(pid: int) -> str:
    """Return boot id, pid namespace, pid and start time, as far as the platform provides them."""
    return ":".join((_read("/proc/sys/kernel/random/boot_id"), _namespace(), str(pid), _start_time(pid)))


def _read(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""


def _namespace() -> str:
    try:
        return str(Path("/proc/self/ns/pid").readlink())
    except OSError:
        return ""


def _start_time(pid: int) -> str:
    """Return the start time in clock ticks since boot; empty for a missing process or a zombie."""
    state, *fields = _read(f"/proc/{pid}/stat").rpartition(")")[2].split() or [""]  # the command may contain spaces
    return "" if state in {"", "Z", "X"} else fields[_START_TIME - 1]
