"""One queue as the overview and the queue pages show it."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from django.utils.translation import gettext as _

from queue_app.core.priorities import Band
from queue_app.core.shared import Shared
from queue_app.index import IndexStats
from queue_app.index.stats import QueueDepth
from queue_app.models import Queue
from queue_app.services.read import stats
from queue_app.services.read.stats import READY, UNREACHABLE, QueueSummary


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
    active: int  # running tasks
    bands: list[BandRow] = field(default_factory=list)
    depths: list[int] = field(default_factory=list)  # of the last hour, one a minute
    completed: int | None = None  # per minute, see ``live``; None: unknown
    failed: int | None = None
    workers: int = 0  # active workers that serve the queue
    slots: int = 0

    @property
    def depth(self) -> int:
        return sum(row.depth for row in self.bands)

    @property
    def is_late(self) -> bool:
        """Whether a task waits longer than the target of its band."""
        return any(row.is_late for row in self.bands)


def oldest_seconds(summary: QueueSummary | None) -> float | None:
    """Return the longest wait in a queue."""
    if summary is None:
        return None
    ages = [band.oldest_age_seconds for band in summary.bands.values() if band.oldest_age_seconds is not None]
    return max(ages, default=None)


#: Seconds for which viewers share the numbers of the rows. Counting reads every queued task.
FRESH_ROWS: Final = 5.0
rows_shared: Final = Shared(lambda _: stats.depths_of_rows(), lambda _: FRESH_ROWS)


def depths(index: IndexStats | None) -> dict[str, QueueDepth]:
    """Return the counts of all queues: of the index if it is ready, else of the rows."""
    if index is None or index.state != READY:
        return rows_shared.get()
    return {depth.queue: depth for depth in index.queues}


def summaries(queues: Iterable[Queue]) -> tuple[dict[str, QueueSummary], str]:
    """Return the summary of each queue by name; with the sentence of the page if the numbers come from the rows."""
    found, state = stats.summaries(queues, rows_shared.get)
    return found, "" if state == READY else from_rows_text(state)


def from_rows_text(state: str) -> str:
    """Return the sentence for numbers that PostgreSQL counted, because the index is in ``state``."""
    if state == UNREACHABLE:
        return _("Redis cannot be reached: these are PostgreSQL's numbers. No task is lost, and none starts.")
    return _("The index is %(state)s: these are PostgreSQL's numbers.") % {"state": state}
