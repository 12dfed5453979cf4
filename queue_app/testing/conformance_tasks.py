"""The tasks of the conformance suite, which reloads this module for each test."""

import sys
from typing import Any

from django.tasks import task
from django.tasks.exceptions import InvalidTask

#: Calls of the tasks, for runs in the test's process; the same list after a reload.
CALLS: list[Any] = globals().get("CALLS", [])


class Refused(Exception):
    """Raised by a task."""

    class Nested(Exception):
        """Has one more dot in its path."""


@task
def add(a: int, b: int = 0) -> int:
    """Return a sum."""
    CALLS.append(("add", a, b))
    return a + b


@task
def other() -> None:
    """Return nothing."""


@task
def echo(*args: Any, **kwargs: Any) -> list[Any]:
    """Return the parameters."""
    return [list(args), kwargs]


@task
def fail(nested: bool = False) -> None:  # noqa: FBT001, FBT002 - a parameter of a task
    """Raise an exception of this module."""
    raise (Refused.Nested if nested else Refused)("no")


@task
def exit_early() -> None:
    """Raise an exception that is no ``Exception``."""
    sys.exit("enough")


@task
def unserializable() -> object:
    """Return a value that JSON cannot hold."""
    return object()


@task(takes_context=True)
def describe_context(context: Any, word: str) -> list[Any]:
    """Return the contents of the context."""
    seen = context.task_result
    return [word, seen.id, context.attempt, seen.attempts, str(seen.status), seen.is_finished]


async def _think(number: int) -> int:
    CALLS.append(("think", number))
    return number + 1


_think.__name__ = _think.__qualname__ = "think"
think: Any = _think
try:
    think = task(_think)
except InvalidTask as refused:  # a backend that cannot run coroutines
    think = refused


def plain() -> None:
    """Do nothing; not a task."""
