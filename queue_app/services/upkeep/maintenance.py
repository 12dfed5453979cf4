"""Upkeep that Celery beat runs: promotion, expiry, statistics, purge. Bounded, idempotent, safe twice at once.

Each job leaves the time of its last success in the rows. So the scheduler sees which ones
are overdue and runs those itself: the queue works without Celery.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from django.db import Error as DatabaseError
from django.db.models import Count, Max
from django.utils import timezone

from queue_app import conf
from queue_app.conf import RetentionSettings
from queue_app.core.priorities import Band
from queue_app.core.states import WAITING
from queue_app.exceptions import IndexUnavailable
from queue_app.models import Queue, QueueStats, Task
from queue_app.services.enqueue.admission import expire_eager
from queue_app.services.read.stats import queue_summary
from queue_app.services.upkeep import jobs
from queue_app.services.upkeep.promote import JOB as PROMOTE
from queue_app.services.upkeep.promote import promote as promote_aged
from queue_app.sql import throttle, upkeep

PURGE: Final = "purge"
#: So often the walk over successes begins at the beginning; else so long before where the last one came to its end.
WALK: Final = timedelta(hours=1)
OVERLAP: Final = timedelta(days=1)

_Purge = Callable[[float, float, int, datetime | None], list[datetime]]


def purge_tasks(retention: RetentionSettings, limit: int, until: float) -> int:
    """Delete ended tasks past their retention; return how many.

    Successes and failures take turns with batches of ``limit``: each at least one, and none
    after ``until``, by the monotonic clock.
    """
    key_seconds, deleted = retention.idempotency_seconds, 0
    before = _Walk.last(retention)
    kinds: dict[_Purge, tuple[float, datetime | None]] = {
        upkeep.purge_completed: (retention.success_seconds, before.start if before else None),
        upkeep.purge_unsuccessful: (retention.failure_seconds, None),
    }
    begun = timezone.now()
    while kinds:
        for delete, (keep, after) in list(kinds.items()):
            batch = delete(keep, key_seconds, limit, after)
            deleted += len(batch)
            if len(batch) == limit:
                kinds[delete] = (keep, max(batch))
            else:
                del kinds[delete]
                if delete is upkeep.purge_completed:
                    _Walk.note(retention, begun, before)
        if time.monotonic() >= until:
            break
    return deleted


@dataclass(frozen=True, slots=True)
class _Walk:
    """How far successes have been deleted to the last one.

    What ended before that is kept for longer, failures above all, and is not read over in
    every run again: only in one each ``WALK``, which meets what was locked, or stood
    for an idempotency key, when the others passed.
    """

    done: datetime  # nothing that ended before was left
    since: datetime  # the last run that began at the beginning

    @property
    def start(self) -> datetime:
        return self.done - OVERLAP

    @classmethod
    def last(cls, retention: RetentionSettings) -> _Walk | None:
        """Return the walk that a run may go on from, if there is one."""
        found = jobs.progress(PURGE)
        if found.get("retention") != _times(retention):
            return None
        walk = cls(datetime.fromisoformat(found["done"]), datetime.fromisoformat(found["since"]))
        return walk if timedelta() <= timezone.now() - walk.since < WALK else None

    @classmethod
    def note(cls, retention: RetentionSettings, begun: datetime, before: _Walk | None) -> None:
        """Keep for the next run that nothing is left which was to be deleted when this one began."""
        done = begun - timedelta(seconds=retention.success_seconds)
        since = before.since if before else begun
        jobs.note_progress(
            PURGE, {"retention": _times(retention), "done": done.isoformat(), "since": since.isoformat()}
        )


def _times(retention: RetentionSettings) -> list[float]:
    return [retention.success_seconds, retention.idempotency_seconds]


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


logger = logging.getLogger("taskqueue")

PURGE_BATCH = 1000
#: So long one run of the purge goes on while there is something to delete: a third of the time, where it is run once
#: a minute, and so several times what workers can add.
PURGE_SECONDS = 20.0
#: A job whose last success is older than so many intervals is overdue.
OVERDUE_INTERVALS = 3


@jobs.recorded(PROMOTE)
def promote() -> int:
    """Let aged tasks rise to the bands that their age gives them; return how many steps were made."""
    return promote_aged().total


@jobs.recorded("expire")
def expire() -> int:
    """Give up stale tasks of the queues that expire eagerly; return how many."""
    return expire_eager()


@jobs.recorded(PURGE)
def purge(*, seconds: float = PURGE_SECONDS) -> int:
    """Delete ended tasks past their retention, in small batches for at most about ``seconds``; return how many.

    Success and failure have retentions of their own. Dead letters, statistics and workers
    go with their own too.
    """
    retention = conf.get().retention
    deleted = purge_tasks(retention, PURGE_BATCH, time.monotonic() + seconds)
    upkeep.purge_dead_letters(PURGE_BATCH)
    upkeep.purge_audit(retention.audit_seconds, PURGE_BATCH)
    upkeep.purge_operations(retention.dead_letter_seconds, PURGE_BATCH)
    upkeep.purge_stats(retention.stats_seconds, PURGE_BATCH)
    upkeep.purge_workers(retention.worker_seconds, PURGE_BATCH)
    throttle.forget(retention.stats_seconds, PURGE_BATCH)
    return deleted


@jobs.recorded("snapshot")
def snapshot() -> int:
    """Write the statistics of this minute for every queue; return how many rows were new."""
    return take_snapshot(timezone.now().replace(second=0, microsecond=0))


JOBS: dict[str, Callable[[], int]] = {"promote": promote, "expire": expire, "snapshot": snapshot, PURGE: purge}


def run_overdue(*names: str, every: bool = False) -> list[str]:
    """Run those of the jobs (none named: all) that nobody else has run for too long, or with ``every`` each of them.

    Return the names of those done.
    """
    return [name for name in names or JOBS if (every or is_overdue(name)) and _succeeds(name, JOBS[name])]


def _succeeds(name: str, job: Callable[[], int]) -> bool:
    """Run a job for itself: one that fails always must not keep the others from their work."""
    try:
        job()
    except (IndexUnavailable, DatabaseError) as error:  # a server is away: no news, and no fault of the job
        logger.warning("%s failed: %s", name, " ".join(str(error).split()))
        return False
    except Exception:
        logger.exception("%s failed", name)
        return False
    return True


def is_overdue(name: str) -> bool:
    """Whether nobody has done a job for too long."""
    return not jobs.succeeded_within(name, OVERDUE_INTERVALS * conf.get().scheduler.maintenance_seconds)
