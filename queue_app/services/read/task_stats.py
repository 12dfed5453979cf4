"""Read the statistics of task types, users and concurrency keys over a period."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Final

from django.db.models import QuerySet
from django.utils import timezone

from queue_app.core.histogram import from_json, percentile
from queue_app.models import TaskStats
from queue_app.models.task_stats import StatsKind
from queue_app.sql.database import alias

#: Periods of the lists.
PERIODS: Final = {
    "1h": timedelta(hours=1),
    "24h": timedelta(hours=24),
    "7d": timedelta(days=7),
    "30d": timedelta(days=30),
}
#: Maximum number of users or keys in a list: those with most tasks.
MOST_NAMES: Final = 500


@dataclass(slots=True)
class Figures:
    """What ended of one task type, user or key in a period."""

    name: str
    completed: int = 0
    failed: int = 0
    other: int = 0
    failures: int = 0  # failed attempts
    last_at: datetime | None = None
    waits: Counter[int] = field(default_factory=Counter)
    runs: Counter[int] = field(default_factory=Counter)
    versions: Counter[str] = field(default_factory=Counter)

    def add(self, row: TaskStats) -> None:
        self.completed += row.completed
        self.failed += row.failed
        self.other += row.other
        self.failures += row.failures
        self.last_at = max(self.last_at or row.last_at, row.last_at)
        self.waits += from_json(row.waits)
        self.runs += from_json(row.runs)
        self.versions += Counter(row.versions)

    @property
    def total(self) -> int:
        return self.completed + self.failed + self.other

    @property
    def failed_share(self) -> float:
        return 100 * self.failed / self.total if self.total else 0.0

    @property
    def wait_p50(self) -> float | None:
        """Median wait before the last attempt in seconds."""
        return percentile(self.waits, 0.5)

    @property
    def wait_p95(self) -> float | None:
        return percentile(self.waits, 0.95)

    @property
    def run_p50(self) -> float | None:
        """Median run time of the last attempt in seconds."""
        return percentile(self.runs, 0.5)

    @property
    def run_p95(self) -> float | None:
        return percentile(self.runs, 0.95)


@dataclass(frozen=True, slots=True)
class History:
    """The rows of one name over the longest period, and their sums over each."""

    rows: list[TaskStats]  # oldest first
    sums: dict[str, Figures]  # period -> figures


def figures(kind: StatsKind, period: str) -> list[Figures]:
    """Return the figures of all names that had ended tasks in a period. Raises ``KeyError`` for an unknown one."""
    found: dict[str, Figures] = {}
    for row in _rows(kind, PERIODS[period]).iterator(2000):
        found.setdefault(row.name, Figures(row.name)).add(row)
    most = sorted(found.values(), key=lambda each: -each.total)
    return most if kind is StatsKind.TYPE else most[:MOST_NAMES]


def history(kind: StatsKind, name: str) -> History:
    """Return the statistics of one name."""
    rows = list(_rows(kind, PERIODS["30d"]).filter(name=name).order_by("since"))
    now = timezone.now()
    return History(rows, {period: _sum(name, rows, now - length) for period, length in PERIODS.items()})


def _sum(name: str, rows: Iterable[TaskStats], begin: datetime) -> Figures:
    found = Figures(name)
    for row in rows:
        if row.last_at >= begin:
            found.add(row)
    return found


def _rows(kind: StatsKind, length: timedelta) -> QuerySet[TaskStats]:
    # The first hour or day counts whole; one in which the last task ended before the period does not.
    begin = timezone.now() - length
    rows = TaskStats.objects.using(alias()).filter(kind=kind, last_at__gte=begin)
    unit = timedelta(hours=1) if kind is StatsKind.TYPE else timedelta(days=1)
    return rows.filter(since__gt=begin - unit)
