"""Read the statistics of task types, users and concurrency keys over a period."""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from django.db.models import QuerySet
from django.utils import timezone

from queue_app.models import TaskStats
from queue_app.models.task_stats import StatsKind
from queue_app.sql.database import alias
from queue_app.sql.task_stats import Figures

#: Periods of the lists.
PERIODS: Final = {
    "1h": timedelta(hours=1),
    "24h": timedelta(hours=24),
    "7d": timedelta(days=7),
    "30d": timedelta(days=30),
}
#: Maximum number of users or keys in a list: those with most tasks.
MOST_NAMES: Final = 500


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
