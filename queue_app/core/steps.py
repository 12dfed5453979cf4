"""The steps of a task: what an attempt has done, and later attempts need not do again."""

from datetime import datetime
from enum import StrEnum
from typing import Final, NamedTuple

#: Maximum characters of a step's name.
STEP_NAME_LENGTH: Final = 200


class StepKind(StrEnum):
    """What a task did in a step."""

    STEP = "step"  # called a function
    SLEEP = "sleep"
    SIGNAL = "signal"  # waited for a signal, or still waits
    TIMEOUT = "timeout"  # waited for a signal that did not arrive in time


class Step(NamedTuple):
    """One step, as it is stored."""

    position: int  # 1 for the first step of the task
    name: str
    kind: str
    value: str | None = None  # JSON text; None for null
    until: datetime | None = None  # end of a sleep, or of the time to wait
    signal: str = ""  # name of the signal
    is_done: bool = True  # false while the task waits for the signal


_ADVICE: Final = (
    "While tasks of a type run, keep the names and the order of its steps: restore the former code and replay the task,"
    " or register the new code as another task type."
)


def changed(position: int, stored: str, now: str | None) -> str:
    """Say that an earlier attempt stored another step at a position (``now`` is ``None``: none is called there)."""
    instead = "the function ended without it" if now is None else f"it is {now!r}"
    return f"Step {position} of this task was {stored!r} when an earlier attempt stored it; now {instead}. {_ADVICE}"


def moved(name: str, before: int, now: int) -> str:
    """Say that an earlier attempt stored a step at another position."""
    return f"{name!r} was step {before} of this task when an earlier attempt stored it; now it is step {now}. {_ADVICE}"


def repeated(name: str) -> str:
    """Say that two steps have the same name, and what to do."""
    return f"The task has called the step {name!r} already. Give each step a name of its own, such as '{name} 2'."
