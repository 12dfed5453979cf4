"""Keep the statistics of task types, users and concurrency keys: add what ended since the last run to their rows.

The time up to which tasks are counted is stored with the rows, in one transaction, under a lock on the job's row. So a
run that dies leaves nothing behind, and two runs at once count each task once.
"""

from collections import Counter
from collections.abc import Sequence
from datetime import datetime, timedelta
from operator import attrgetter
from typing import Final

from queue_app.core import histogram
from queue_app.models import MaintenanceJob, TaskStats
from queue_app.models.task_stats import StatsKind
from queue_app.sql.database import alias, atomic, clock
from queue_app.sql.task_stats import Ended, ended

JOB: Final = "task_stats"
#: Longest time that one run makes up for.
LONGEST_GAP: Final = timedelta(hours=1)
#: A task's end is stored a moment before its commit; what is younger than this is left to the next run.
SETTLED: Final = timedelta(seconds=5)
#: Maximum number of users, and of keys, that one run counts: those with most tasks.
MOST_NAMES: Final = 1_000


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
                found = sorted(found, key=attrgetter("total"), reverse=True)[:MOST_NAMES]
            _add(kind, found)
        job.progress = {"until": until.isoformat()}
        job.started_at = job.succeeded_at = clock()
        job.done = counted
        job.save()
    return counted


def _add(kind: StatsKind, found: Sequence[Ended]) -> None:
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
        stats.waits = histogram.as_json(histogram.from_json(stats.waits) + row.waits)
        stats.runs = histogram.as_json(histogram.from_json(stats.runs) + row.runs)
        stats.versions = dict(Counter(stats.versions) + row.versions)
        changed.append(stats)
    fields = ["completed", "failed", "other", "failures", "last_at", "waits", "runs", "versions"]
    rows.bulk_create(
        changed, update_conflicts=True, unique_fields=["kind", "name", "since"], update_fields=fields, batch_size=500
    )
