"""Lanes and scores: the place of a queued task in the index.

A **lane** is a queue, a task type and a set of required capabilities. The same workers can run all tasks of a lane, in
order. The **address** of a task also has its user, concurrency key and weight, as limits may ask for them. A name joins
these parts with the ASCII unit separator, which no valid name contains.

Callers give the address, always with the user. The index makes the lane of it (``lua/lib/places.lua``).
"""

from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Final, NamedTuple

from queue_app.core.priorities import Band

SEPARATOR: Final = "\x1f"
#: Distance between the scores of two bands. A time in milliseconds reaches 10^13 in the year 2286.
BAND_WIDTH: Final = 10**13
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


class Lane(NamedTuple):
    """The parts of the name of a lane or an address."""

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


def lane_name(  # noqa: PLR0913, PLR0917 - the parts of a lane
    queue: str, task_type: str, capabilities: Iterable[str], user: str = "", key: str = "", weight: int = 1
) -> str:
    """Return the name of a lane; the capabilities must be sorted, as they are in rows."""
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


def kind_of(name: str) -> str:
    """Return queue, task type and capabilities of a lane or an address: all lanes of such tasks have them in common."""
    return SEPARATOR.join(name.split(SEPARATOR, 3)[:3])


def score(band: int, queued_at: datetime) -> float:
    """Return ``band * 10^13`` plus ``queued_at`` in milliseconds, with a fraction.

    The fraction keeps tasks of the same millisecond in order across lanes: a double has steps
    of at most 8 µs here, and no producer enqueues that fast.
    """
    elapsed = queued_at - _EPOCH
    microseconds = (elapsed.days * 86_400 + elapsed.seconds) * 1_000_000 + elapsed.microseconds
    return (band * BAND_WIDTH * 1000 + microseconds) / 1000


def band_of(value: float) -> Band:
    """Return the band of a score."""
    return Band(int(value // BAND_WIDTH))


def queued_at_of(value: float) -> datetime:
    """Return the time in a score."""
    return datetime.fromtimestamp((value % BAND_WIDTH) / 1000, tz=UTC)
