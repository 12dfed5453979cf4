"""Gates and their limits, and lanes, as PostgreSQL and the index exchange them.

A gate is a point at which limits apply: everything, a queue, a task type, a concurrency key, or a
user in a queue. A task starts only if all its gates are open. See ``docs/explanation/limits.md``.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from typing import Final, NamedTuple

from queue_app.core.priorities import Band

#: How the tasks of a queue are ordered.
FIFO, FAIR, ARRIVAL = ORDERS = ("fifo", "fair", "arrival")
#: Name of the algorithm of adaptive limits, and those of former ones: a limit with such a name goes on with this one.
ALGORITHM: Final = "gradient2"
FORMER_ALGORITHMS: Final = ("aimd", "vegas")
#: The gate of the runtime settings, which every start passes.
EVERYTHING: Final = "a"


class Scope(StrEnum):
    """Kinds of named gates."""

    QUEUE = "queue"
    TYPE = "type"
    KEY = "key"


def gate_of(scope: Scope | str, name: str) -> str:
    """Return the name of a gate in the index."""
    return f"{Scope(scope).value[0]}:{name}"


def names_of(scope: str, name: str) -> list[str]:
    """Return the names of the limits that hold for a type or key, the nearest first: a key also has its family's."""
    family, colon, _ = name.partition(":")
    return [name, family] if scope == Scope.KEY and family and colon else [name]


class Gate(NamedTuple):
    """A gate with a row: ``scope`` is everything, queue, type or key."""

    scope: str
    name: str = ""

    @property
    def index_name(self) -> str:
        """The name in the index."""
        return gate_of(self.scope, self.name) if self.name else EVERYTHING


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The limits of one gate; ``None`` means no limit."""

    max_concurrent: int | None = None
    paused: bool = False
    rate_count: int | None = None
    rate_seconds: float | None = None
    rate_burst: int | None = None  # None: as rate_count
    min_delay_seconds: float | None = None
    throttled_until: datetime | None = None
    # queues only
    max_concurrent_per_user: int | None = None
    fair_by: str | None = None  # user, key
    by_arrival: bool = False
    shares: Mapping[str, float] = field(default_factory=dict)

    @property
    def by_user(self) -> bool:
        """Whether each user has separate lanes."""
        return self.max_concurrent_per_user is not None or self.fair_by == "user"

    def fields(self) -> dict[str, str]:
        """Return the fields of the gate's hash in the index, times in µs, without absent limits."""
        found: dict[str, str] = {}
        if self.max_concurrent is not None:
            found["max_concurrent"] = str(self.max_concurrent)
        if self.paused:
            found["paused"] = "1"
        if self.rate_count and self.rate_seconds:
            found["burst"] = str(self.rate_burst or self.rate_count)
            found["interval"] = repr(self.rate_seconds * 1e6 / self.rate_count)
        if self.min_delay_seconds:
            found["delay"] = str(round(self.min_delay_seconds * 1e6))
        if self.throttled_until is not None:
            found["throttled"] = str(round(self.throttled_until.timestamp() * 1e6))
        if self.max_concurrent_per_user is not None:
            found["per_user"] = str(self.max_concurrent_per_user)
        if self.fair_by:
            found["fair"] = self.fair_by
            found |= {f"share:{name}": repr(float(share)) for name, share in self.shares.items()}
        if self.by_user:
            found["by_user"] = "1"
        if self.by_arrival:
            found["arrival"] = "1"
        return found


# Lanes and scores: the place of a queued task in the index.
#
# A **lane** is a queue, a task type and a set of required capabilities. The same workers can run all tasks of a lane,
# in order. The **address** of a task also has its user, concurrency key and weight, as limits may ask for them. A name
# joins these parts with the ASCII unit separator, which no valid name contains.
#
# Callers give the address, always with the user. The index makes the lane of it (``lua/lib/places.lua``).

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
