"""The result of one check of ``taskqueue doctor``."""

from dataclasses import dataclass
from enum import StrEnum


class Level(StrEnum):
    """``warn``: no or little harm so far. ``fail``: the queue does not work as it should."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


@dataclass(frozen=True, slots=True)
class Finding:
    """What a check found; unless all is well, ``hint`` says what to do."""

    check: str
    level: Level
    message: str
    hint: str = ""


def ok(check: str, message: str) -> Finding:
    """Return a finding that needs no action."""
    return Finding(check, Level.OK, message)


def warn(check: str, message: str, hint: str) -> Finding:
    """Return a warning."""
    return Finding(check, Level.WARN, message, hint)


def fail(check: str, message: str, hint: str) -> Finding:
    """Return a failure."""
    return Finding(check, Level.FAIL, message, hint)
