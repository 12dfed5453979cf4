"""What waits in a queue, as the index counts it."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from queue_app.core.priorities import Band


@dataclass(frozen=True, slots=True)
class QueueDepth:
    """Queued tasks by effective band, when the oldest of each was queued, and leases in use."""

    queue: str
    active: int
    counts: dict[Band, int]
    oldest: dict[Band, datetime]

    @property
    def total(self) -> int:
        """All queued tasks."""
        return sum(self.counts.values())
