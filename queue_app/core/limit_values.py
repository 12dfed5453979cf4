"""The limits of one gate, as rows and index exchange them.

A start passes gates: everything, its queue, its task type, its concurrency key, its user in
that queue. Each may have limits; ``docs/explanation/limits.md`` says how they are kept.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Final

#: Everything: the gate of the runtime settings.
EVERYTHING: Final = "a"


class Scope(StrEnum):
    """What a gate is on."""

    QUEUE = "queue"
    TYPE = "type"
    KEY = "key"


def gate_of(scope: Scope | str, name: str) -> str:
    """Return the index's name of a gate."""
    return f"{Scope(scope).value[0]}:{name}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What one gate allows; ``None`` is no limit."""

    max_concurrent: int | None = None
    paused: bool = False
    rate_count: int | None = None
    rate_seconds: float | None = None
    rate_burst: int | None = None  # None: as rate_count
    min_delay_seconds: float | None = None
    throttled_until: datetime | None = None
    # of queues only
    max_concurrent_per_user: int | None = None
    fair_by: str | None = None  # user, key
    shares: Mapping[str, float] = field(default_factory=dict)

    @property
    def by_user(self) -> bool:
        """Whether the tasks of each user stand in lanes of their own."""
        return self.max_concurrent_per_user is not None or self.fair_by == "user"

    def fields(self) -> dict[str, str]:
        """Return what stands in the index, by field; times in µs. What is unlimited is left out."""
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
        return found
