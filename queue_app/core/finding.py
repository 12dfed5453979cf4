"""What an examination finds."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Level(StrEnum):
    """How bad it is: ``warn`` will hurt some day, or hurts a little; ``fail`` hurts now."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at: what is so, and what to do unless it is fine."""

    check: str
    level: Level
    message: str
    hint: str = ""


def ok(check: str, message: str) -> Finding:
    """Return that all is well."""
    return Finding(check, Level.OK, message)


def warn(check: str, message: str, hint: str) -> Finding:
    """Return what should be seen to."""
    return Finding(check, Level.WARN, message, hint)


def fail(check: str, message: str, hint: str) -> Finding:
    """Return what must be seen to."""
    return Finding(check, Level.FAIL, message, hint)
