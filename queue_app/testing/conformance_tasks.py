"""The tasks of the conformance suite, which imports this module anew for each backend and test.

``TOLD`` is what they did, for runs in the process of the test.
"""

from __future__ import annotations

import sys
from typing import Any

from django.tasks import task
from django.tasks.exceptions import InvalidTask

TOLD: list[Any] = globals().get("TOLD", [])  # the same list after a reload


class Refused(Exception):
    """What a task raises."""

    class Nested(Exception):
        """The path of a nested class has one dot more."""


@task
def add(a: int, b: int = 0) -> int:
    """Return a sum."""
    TOLD.append(("add", a, b))
    return a + b


@task
def other() -> None:
    """Be another function; return nothing."""


@task
def echo(*args: Any, **kwargs: Any) -> list[Any]:
    """Return the parameters as they came."""
    return [list(args), kwargs]


@task
def fail(nested: bool = False) -> None:  # noqa: FBT001, FBT002 - a parameter of a task
    """Raise an exception of this module."""
    raise (Refused.Nested if nested else Refused)("no")


@task
def leave() -> None:
    """Raise what is no Exception."""
    sys.exit("enough")


@task
def unserializable() -> object:
    """Return what JSON cannot hold."""
    return object()


@task(takes_context=True)
def look(context: Any, word: str) -> list[Any]:
    """Return what the context tells."""
    seen = context.task_result
    return [word, seen.id, context.attempt, seen.attempts, str(seen.status), seen.is_finished]


async def _think(number: int) -> int:
    TOLD.append(("think", number))
    return number + 1


_think.__name__ = _think.__qualname__ = "think"
think: Any = _think
try:
    think = task(_think)
except InvalidTask as refused:  # a backend that cannot run coroutines says so
    think = refused


def plain() -> None:
    """Be no task."""
