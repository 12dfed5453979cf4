"""Statistics of every queue, one row a minute."""

from __future__ import annotations

from datetime import datetime, timedelta

from django.db.models import Count

from queue_app.core.priorities import Band
from queue_app.core.states import Status
from queue_app.exceptions import IndexUnavailable
from queue_app.models import Queue, QueueStats, Task
from queue_app.rows import upkeep
from queue_app.services.stats import queue_summary


def take_snapshot(at: datetime) -> int:
    """Write one row per queue for the minute ``at``; return how many are new.

    Counts of the last minute come from the rows; depths from the index, and are empty
    while it cannot be reached.
    """
    counts = upkeep.count_transitions(at - timedelta(minutes=1), at)
    times = upkeep.percentiles(at - timedelta(minutes=1), at)
    waiting = Task.objects.filter(status=Status.SCHEDULED).values_list("queue").annotate(Count("id"))
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
