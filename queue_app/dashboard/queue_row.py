"""What the overview knows of one queue."""

from __future__ import annotations

from dataclasses import dataclass, field

from queue_app.core.priorities import Band
from queue_app.models import Queue


@dataclass(frozen=True, slots=True)
class BandRow:
    """What waits in one band of a queue."""

    band: Band
    depth: int
    oldest: float | None
    target: float | None

    @property
    def is_late(self) -> bool:
        """Whether the oldest waits longer than tasks of this band should."""
        return self.oldest is not None and self.target is not None and self.oldest > self.target


@dataclass(slots=True)
class QueueRow:
    """One queue: its row, what the index says, what happened in the last minutes."""

    queue: Queue
    active: int | None  # what runs; None while the index cannot be asked
    bands: list[BandRow] = field(default_factory=list)
    depths: list[int] = field(default_factory=list)  # of the last hour, one a minute
    ended: list[int] = field(default_factory=list)
    completed: int | None = None  # in a minute, see ``history``; None: not known
    failed: int | None = None
    workers: int = 0  # active ones that serve it
    slots: int = 0

    @property
    def depth(self) -> int:
        """All that is queued."""
        return sum(row.depth for row in self.bands)

    @property
    def oldest(self) -> float | None:
        """The age of what waits longest."""
        return max((row.oldest for row in self.bands if row.oldest is not None), default=None)

    @property
    def is_late(self) -> bool:
        """Whether something waits longer than it should."""
        return any(row.is_late for row in self.bands)

    @property
    def is_full(self) -> bool:
        """Whether its cap is reached."""
        cap = self.queue.max_concurrent
        return cap is not None and self.active is not None and self.active >= cap
