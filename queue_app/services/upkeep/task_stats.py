"""Statistics of task types, users and concurrency keys: add the tasks that ended since the last run, and read the sums.

The time up to which tasks are counted is stored with the rows, in one transaction, under a lock on the job's row. So a
run that dies leaves nothing behind, and two runs at once count each task once.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from operator import attrgetter
from typing import Final

from django.db.models import QuerySet
from django.utils import timezone

from queue_app.core import counters
from queue_app.models import MaintenanceJob, TaskStats
from queue_app.models.stats import StatsKind
from queue_app.sql.database import alias, atomic, clock
from queue_app.sql.stats import EndedInPeriod, EndedTotals, ended

JOB: Final = "task_stats"
#: Longest time that one run makes up for.
LONGEST_GAP: Final = timedelta(hours=1)
#: A task's end is stored a moment before its commit; younger ends are left to the next run.
SETTLED: Final = timedelta(seconds=5)
#: Maximum number of users, and of keys, that one run counts: those with most tasks.
COUNTED_NAMES: Final = 1_000
#: Periods of the lists.
PERIODS: Final = {
    "1h": timedelta(hours=1),
    "24h": timedelta(hours=24),
    "7d": timedelta(days=7),
    "30d": timedelta(days=30),
}
#: Maximum number of users or keys in a list: those with most tasks.
LISTED_NAMES: Final = 500


def collect() -> int:
    """Count the tasks that ended since the last run; return how many."""
    jobs = MaintenanceJob.objects.using(alias())
    with atomic():
        jobs.get_or_create(name=JOB)
        job = jobs.select_for_update().get(name=JOB)
        until = clock() - SETTLED
        stored = job.progress.get("until")
        since = datetime.fromisoformat(stored) if stored else until - LONGEST_GAP
        since = max(since, until - LONGEST_GAP)
        if since >= until:
            return 0
        counted = 0
        for kind in StatsKind:
            found = ended(kind, since, until)
            if kind is StatsKind.TYPE:
                counted = sum(row.total for row in found)
            else:
                found = sorted(found, key=attrgetter("total"), reverse=True)[:COUNTED_NAMES]
            _add(kind, found)
        job.progress = {"until": until.isoformat()}
        job.started_at = job.succeeded_at = clock()
        job.done = counted
        job.save()
    return counted


def _add(kind: StatsKind, found: Sequence[EndedInPeriod]) -> None:
    if not found:
        return
    rows = TaskStats.objects.using(alias())
    stored = rows.filter(kind=kind, since__in={row.since for row in found}, name__in=[row.name for row in found])
    known = {(row.name, row.since): row for row in stored}
    changed = []
    for row in found:
        stats = known.get((row.name, row.since)) or TaskStats(kind=kind, name=row.name, since=row.since)
        stats.completed += row.completed
        stats.failed += row.failed
        stats.other += row.other
        stats.failures += row.failures
        stats.last_at = row.last_at or row.since
        stats.waits = counters.as_json(counters.from_json(stats.waits) + row.waits)
        stats.runs = counters.as_json(counters.from_json(stats.runs) + row.runs)
        stats.versions = dict(Counter(stats.versions) + row.versions)
        changed.append(stats)
    fields = ["completed", "failed", "other", "failures", "last_at", "waits", "runs", "versions"]
    rows.bulk_create(
        changed, update_conflicts=True, unique_fields=["kind", "name", "since"], update_fields=fields, batch_size=500
    )


@dataclass(frozen=True, slots=True)
class History:
    """The rows of one name over the longest period, and their sums over each."""

    rows: list[TaskStats]  # oldest first
    sums: dict[str, EndedTotals]  # by period


def totals(kind: StatsKind, period: str) -> list[EndedTotals]:
    """Return the totals of all names that had ended tasks in a period. Raises ``KeyError`` for an unknown period."""
    found: dict[str, EndedTotals] = {}
    for row in _rows(kind, PERIODS[period]).iterator(2000):
        found.setdefault(row.name, EndedTotals(row.name)).add(row)
    most = sorted(found.values(), key=lambda each: -each.total)
    return most if kind is StatsKind.TYPE else most[:LISTED_NAMES]


def history(kind: StatsKind, name: str) -> History:
    """Return the statistics of one name."""
    rows = list(_rows(kind, PERIODS["30d"]).filter(name=name).order_by("since"))
    now = timezone.now()
    return History(rows, {period: _sum(name, rows, now - length) for period, length in PERIODS.items()})


def _sum(name: str, rows: Iterable[TaskStats], begin: datetime) -> EndedTotals:
    found = EndedTotals(name)
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
