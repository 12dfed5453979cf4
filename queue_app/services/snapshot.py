"""Statistics of every queue, one row a minute."""

from __future__ import annotations

from datetime import datetime, timedelta

from django.db.models import Count, Max

from queue_app.core.priorities import Band
from queue_app.core.states import WAITING
from queue_app.exceptions import IndexUnavailable
from queue_app.models import Queue, QueueStats, Task
from queue_app.rows import upkeep
from queue_app.services.stats import queue_summary

#: Beyond that a gap stays: to count for days would take too long.
LONGEST_GAP = timedelta(hours=1)


def _since(at: datetime) -> datetime:
    """Return when the snapshot before was taken: usually a minute ago."""
    recent = QueueStats.objects.filter(
        queue__in=Queue.objects.values("name"), taken_at__lt=at, taken_at__gte=at - LONGEST_GAP
    )
    return recent.aggregate(latest=Max("taken_at"))["latest"] or at - timedelta(minutes=1)


def take_snapshot(at: datetime) -> int:
    """Write one row per queue for the minute ``at``; return how many are new.

    Counts since the snapshot before come from the rows, so that their sum is right also
    where snapshots are missing, for an hour at most; depths from the index, and are empty
    while it cannot be reached.
    """
    since = _since(at)
    counts = upkeep.count_transitions(since, at)
    times = upkeep.percentiles(since, at)
    # What is scheduled is not queued yet. Asked like this, the index of what waits tells it without a look at the rows.
    waiting = Task.objects.in_status(*WAITING).filter(queued_at=None).values_list("queue").annotate(tasks=Count("*"))
    scheduled: dict[str, int] = dict(waiting)
    rows: list[QueueStats] = []
    for queue in Queue.objects.all():
        row = QueueStats(
            queue=queue.name,
            taken_at=at,
            scheduled=scheduled.get(queue.name, 0),
            max_concurrent=queue.max_concurrent,
            **counts.get(queue.name, {}),
            **times.get(queue.name, {}),
        )
        try:
            summary = queue_summary(queue)
        except IndexUnavailable:
            rows.append(row)
            continue
        ages = [stats.oldest_seconds for stats in summary.bands.values() if stats.oldest_seconds is not None]
        row.depth = {band.label: summary.bands[band].depth for band in Band}
        row.active = summary.active
        row.oldest_seconds = max(ages) if ages else None
        rows.append(row)
    before = QueueStats.objects.filter(taken_at=at).count()
    QueueStats.objects.bulk_create(rows, ignore_conflicts=True)
    return QueueStats.objects.filter(taken_at=at).count() - before
