"""Lanes and scores: where a queued task stands in the index.

A **lane** is a queue, a task type, a set of required capabilities and, where a task has
them, a user, a concurrency key and a weight: tasks that exactly the same workers can run,
and that pass the same limits, in order. Its name is those joined by the ASCII unit
separator, which no valid name contains.

Names given to the index always tell the user. Only the index knows whether the queue keeps
its users apart, and leaves it out where it does not (``lua/lib/limits.lua``).
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Final, NamedTuple

from queue_app.core.priorities import Band

SEPARATOR: Final = "\x1f"
#: Bands lie this far apart; a time in milliseconds reaches 10^13 in the year 2286.
BAND_WIDTH: Final = 10**13
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


class Lane(NamedTuple):
    """The tasks of one queue that the same workers can run."""

    queue: str
    task_type: str
    capabilities: tuple[str, ...] = ()
    user: str = ""
    key: str = ""
    weight: int = 1

    @property
    def name(self) -> str:
        """The lane's name in the index."""
        return lane_name(*self)


def lane_name(  # noqa: PLR0913, PLR0917 - what a lane is told apart by
    queue: str, task_type: str, capabilities: Iterable[str], user: str = "", key: str = "", weight: int = 1
) -> str:
    """Return the name of the lane of such a task; capabilities are already sorted in the row."""
    name = f"{queue}{SEPARATOR}{task_type}{SEPARATOR}{','.join(capabilities)}"
    if user or key or weight != 1:
        return f"{name}{SEPARATOR}{user}{SEPARATOR}{key}{SEPARATOR}{weight}"
    return name


def parse_lane(name: str) -> Lane:
    """Return the parts of a lane's name."""
    queue, task_type, capabilities, *more = name.split(SEPARATOR)
    names = tuple(capabilities.split(",")) if capabilities else ()
    if not more:
        return Lane(queue, task_type, names)
    user, key, weight = more
    return Lane(queue, task_type, names, user, key, int(weight))


def score(band: int, queued_at: datetime) -> float:
    """Return ``band * 10^13 + queued_at in milliseconds``, with its fraction.

    The fraction keeps tasks of one millisecond in order across lanes: a double has steps
    of at most 8 microseconds here, and no producer enqueues that fast.
    """
    elapsed = queued_at - _EPOCH
    microseconds = (elapsed.days * 86_400 + elapsed.seconds) * 1_000_000 + elapsed.microseconds
    return (band * BAND_WIDTH * 1000 + microseconds) / 1000


def band_of(value: float) -> Band:
    """Return the band that a score lies in."""
    return Band(int(value // BAND_WIDTH))


def queued_at_of(value: float) -> datetime:
    """Return the time that a score carries."""
    return datetime.fromtimestamp((value % BAND_WIDTH) / 1000, tz=UTC)
