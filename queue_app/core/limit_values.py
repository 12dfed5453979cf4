"""The limits of one gate, as PostgreSQL and the index exchange them.

A gate is a point at which limits apply: everything, a queue, a task type, a concurrency key, or a
user in a queue. A task starts only if all its gates are open. See ``docs/explanation/limits.md``.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Final, NamedTuple

#: How the tasks of a queue are ordered.
FIFO, FAIR, ARRIVAL = ORDERS = ("fifo", "fair", "arrival")
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
