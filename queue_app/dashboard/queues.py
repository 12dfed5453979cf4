"""One queue as the overview and the queue pages show it."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from queue_app.core.priorities import Band
from queue_app.exceptions import IndexUnavailable
from queue_app.index import get_index
from queue_app.models import Queue
from queue_app.services.read.stats import QueueSummary, queue_summary


@dataclass(frozen=True, slots=True)
class BandRow:
    """The queued tasks of one band of a queue."""

    band: Band
    depth: int
    oldest: float | None
    target: float | None

    @property
    def is_late(self) -> bool:
        """Whether the oldest task waits longer than the target of its band."""
        return self.oldest is not None and self.target is not None and self.oldest > self.target


@dataclass(slots=True)
class QueueRow:
    """One queue: its row, its state in the index, its recent history."""

    queue: Queue
    active: int | None  # running tasks; None while the index is unreachable
    bands: list[BandRow] = field(default_factory=list)
    depths: list[int] = field(default_factory=list)  # of the last hour, one a minute
    completed: int | None = None  # per minute, see ``live``; None: unknown
    failed: int | None = None
    workers: int = 0  # active workers that serve the queue
    slots: int = 0

    @property
    def depth(self) -> int:
        """Number of queued tasks."""
        return sum(row.depth for row in self.bands)

    @property
    def is_late(self) -> bool:
        """Whether a task waits longer than the target of its band."""
        return any(row.is_late for row in self.bands)


def oldest_seconds(summary: QueueSummary | None) -> float | None:
    """Return the longest wait in a queue."""
    if summary is None:
        return None
    ages = [band.oldest_seconds for band in summary.bands.values() if band.oldest_seconds is not None]
    return max(ages, default=None)


def summaries(queues: Iterable[Queue]) -> tuple[dict[str, QueueSummary], str]:
    """Return the summary of each queue by name, or the error of the index.

    Stops at the first error, so that an unreachable server costs one timeout, not one per queue.
    """
    found: dict[str, QueueSummary] = {}
    try:
        for queue in queues:
            found[queue.name] = queue_summary(queue)
    except IndexUnavailable as error:
        return {}, str(error)
    return found, ""


def index_state() -> str:
    """Return ready, rebuilding, missing or unreachable."""
    try:
        return get_index().generation().state
    except IndexUnavailable:
        return "unreachable"
