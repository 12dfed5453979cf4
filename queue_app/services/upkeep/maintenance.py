"""Run the upkeep jobs: promotion, expiry, statistics, purge. Each is bounded, idempotent and safe to run twice at once.

Celery beat runs them. Each job records its last success in the rows, so the scheduler sees which
ones are overdue and runs those itself: the queue works without Celery.
"""

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final, Self

from django.db import Error as DatabaseError
from django.db.models import Count, Max

from queue_app import conf
from queue_app.conf import RetentionSettings
from queue_app.core import rooms
from queue_app.core.priorities import Band
from queue_app.core.states import Status
from queue_app.exceptions import IndexUnavailable, in_one_line
from queue_app.models import Queue, QueueStats, Task
from queue_app.services.enqueue.admission import expire_eager
from queue_app.services.lifecycle import stacks
from queue_app.services.lifecycle.actions import discard_open
from queue_app.services.read.stats import summaries
from queue_app.services.upkeep import jobs, task_stats
from queue_app.services.upkeep.promote import JOB as PROMOTE, promote as promote_aged
from queue_app.sql import finish, upkeep, workflow_advance
from queue_app.sql.database import atomic, clock

PURGE: Final = "purge"
PURGE_BATCH: Final = 1000
#: Maximum duration of one purge, a third of the minute between two. It deletes several times what workers can add.
PURGE_SECONDS: Final = 20.0
#: Interval at which the purge of completed tasks starts again from the oldest one.
FULL_PASS: Final = timedelta(hours=1)
#: The runs in between start this long before the point at which the last one ended.
OVERLAP: Final = timedelta(days=1)
#: Longest time that a snapshot makes up for when earlier ones are missing: counting for days would take too long.
LONGEST_GAP: Final = timedelta(hours=1)
#: Number of intervals without a success after which a job is overdue.
OVERDUE_INTERVALS: Final = 3

logger = logging.getLogger("taskqueue")


@jobs.recorded(PROMOTE)
def promote() -> int:
    """Let aged tasks rise to higher bands; return the number of steps."""
    return promote_aged().total


@jobs.recorded("expire")
def expire() -> int:
    """Expire stale tasks of the queues that expire eagerly; return how many."""
    return expire_eager()


@jobs.recorded("snapshot")
def snapshot() -> int:
    """Write the statistics of this minute for every queue, and add to those of types; return how many rows were new."""
    task_stats.collect()
    return take_snapshot(clock().replace(second=0, microsecond=0))


@jobs.recorded(PURGE)
def purge(*, seconds: float = PURGE_SECONDS) -> int:
    """Delete ended tasks past their retention, for at most about ``seconds``; return how many.

    Also deletes one batch each of dead letters, audit entries, operations, statistics, steps of limits, workers and
    ticks.
    """
    retention = conf.get().retention
    rooms.call("before_deletion")
    deleted = purge_tasks(retention, PURGE_BATCH, time.monotonic() + seconds)
    deleted += purge_workflows(retention, time.monotonic() + seconds)
    if expired := upkeep.expired_letters_of_workflows(PURGE_BATCH):
        discard_open(expired, by="", reason="its retention has passed")
    upkeep.purge_audit(retention.audit_seconds, PURGE_BATCH)
    for table, seconds_kept in (
        ("deadletter", 0.0),  # each has its own time
        ("operation", retention.dead_letter_seconds),  # as the dead letters that it replayed
        ("idempotentrequest", retention.idempotency_seconds),
        ("queuestats", retention.stats_seconds),
        ("taskstats", retention.task_stats_seconds),
        ("limitstep", retention.stats_seconds),
        ("worker", retention.worker_seconds),
        ("scheduletick", retention.tick_seconds),
    ):
        upkeep.purge_old(table, seconds_kept, PURGE_BATCH)
    finish.forget(retention.stats_seconds, PURGE_BATCH)
    stacks.forget()
    return deleted


JOBS: Final[dict[str, Callable[[], int]]] = {
    PROMOTE: promote, "expire": expire, "snapshot": snapshot, PURGE: purge
}  # fmt: skip


def run_overdue(*names: str, every: bool = False) -> list[str]:
    """Run the named jobs (none: all) that are overdue, or all with ``every``; return those that succeeded."""
    return [name for name in names or JOBS if (every or is_overdue(name)) and _succeeds(name, JOBS[name])]


def is_overdue(name: str) -> bool:
    """Whether a job has not succeeded for too long."""
    return not jobs.succeeded_within(name, OVERDUE_INTERVALS * conf.get().scheduler.maintenance_seconds)


def _succeeds(name: str, job: Callable[[], int]) -> bool:
    """Run a job and log its error, so that the other jobs still run."""
    try:
        job()
    except (IndexUnavailable, DatabaseError) as error:  # a server is away, which is no fault of the job
        logger.warning("%s failed: %s", name, in_one_line(error))
        return False
    except Exception:
        logger.exception("%s failed", name)
        return False
    return True


# -- purge -------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Pass:
    """How far the purge of completed tasks has come.

    Most runs do not read the completed tasks that ended before ``done``: each of them is kept for longer, because its
    row was locked or its idempotency key is still valid. Once per ``FULL_PASS`` a run starts again from the oldest.
    """

    done: datetime  # no completed task that ended earlier is left to delete
    since: datetime  # start of the last run that began with the oldest task

    @classmethod
    def load(cls, retention: RetentionSettings) -> Self | None:
        """Return the pass that a run may continue, if there is one."""
        found = jobs.progress(PURGE)
        if found.get("retention") != _times(retention):
            return None
        last = cls(datetime.fromisoformat(found["done"]), datetime.fromisoformat(found["since"]))
        return last if timedelta() <= clock() - last.since < FULL_PASS else None

    @classmethod
    def save(cls, retention: RetentionSettings, started_at: datetime, last: Self | None) -> None:
        """Save for the next run that every task that was due at ``started_at`` is deleted."""
        done = started_at - timedelta(seconds=retention.success_seconds)
        since = last.since if last else started_at
        jobs.save_progress(
            PURGE, {"retention": _times(retention), "done": done.isoformat(), "since": since.isoformat()}
        )


def _times(retention: RetentionSettings) -> list[float]:
    return [retention.success_seconds, retention.idempotency_seconds]


def purge_tasks(retention: RetentionSettings, limit: int, until: float) -> int:
    """Delete ended tasks past their retention; return how many.

    Completed and unsuccessful tasks take turns with batches of ``limit``. Each has at least one turn,
    and none begins after ``until`` (monotonic).
    """
    key_seconds, deleted = retention.idempotency_seconds, 0
    last = _Pass.load(retention)
    kinds: dict[str, tuple[float, datetime | None]] = {
        upkeep.COMPLETED: (retention.success_seconds, last.done - OVERLAP if last else None),
        upkeep.UNSUCCESSFUL: (retention.failure_seconds, None),
    }
    started_at = clock()
    while kinds:
        for kind, (keep, after) in list(kinds.items()):
            batch = upkeep.purge_tasks(kind, keep, key_seconds, limit, after)
            deleted += len(batch)
            if len(batch) == limit:
                kinds[kind] = (keep, max(batch))
            else:
                del kinds[kind]
                if kind == upkeep.COMPLETED:
                    _Pass.save(retention, started_at, last)
        if time.monotonic() >= until:
            break
    return deleted


def purge_workflows(retention: RetentionSettings, until: float) -> int:
    """Delete ended workflows past their retention in bounded transactions; return how many tasks.

    At least one part is deleted, and none begins after ``until`` (monotonic). After a crash, the next run continues
    with the workflow that was being deleted.
    """
    deleted = 0
    for workflow_id in upkeep.old_workflows(retention.success_seconds, retention.failure_seconds, PURGE_BATCH):
        is_gone = False
        while not is_gone:
            with atomic():
                workflow_advance.lock([workflow_id])
                count, is_gone = upkeep.purge_part(workflow_id, PURGE_BATCH)
            deleted += count
            if time.monotonic() >= until:
                return deleted
    return deleted


# -- statistics --------------------------------------------------------------------


def take_snapshot(at: datetime) -> int:
    """Write one row per queue for the minute ``at``; return how many are new.

    Counts since the last snapshot come from the rows, so their sum is right even where snapshots of up to
    an hour are missing. Depths come from the index if it is ready, else from the rows too.
    """
    since = _last_snapshot(at)
    counts = upkeep.count_transitions(since, at)
    times = upkeep.percentiles(since, at)
    # A scheduled task has no ``queued_at``; in this form the index of waiting tasks answers without reading the rows.
    waiting = Task.objects.in_status(Status.SCHEDULED, Status.QUEUED).filter(queued_at=None)
    scheduled: dict[str, int] = dict(waiting.values_list("queue").annotate(tasks=Count("*")))
    queues = list(Queue.objects.all())
    now, _state = summaries(queues)
    rows: list[QueueStats] = []
    for queue in queues:
        summary = now[queue.name]
        ages = [stats.oldest_age_seconds for stats in summary.bands.values() if stats.oldest_age_seconds is not None]
        row = QueueStats(
            queue=queue.name,
            taken_at=at,
            scheduled=scheduled.get(queue.name, 0),
            depth={band.label: summary.bands[band].depth for band in Band},
            active=summary.active,
            oldest_seconds=max(ages, default=None),
            max_concurrent=queue.cap,
            **counts.get(queue.name, {}),
            **times.get(queue.name, {}),
        )
        rows.append(row)
    before = QueueStats.objects.filter(taken_at=at).count()
    QueueStats.objects.bulk_create(rows, ignore_conflicts=True)
    return QueueStats.objects.filter(taken_at=at).count() - before


def _last_snapshot(at: datetime) -> datetime:
    """Return when the last snapshot was taken: usually a minute ago."""
    recent = QueueStats.objects.filter(
        queue__in=Queue.objects.values("name"), taken_at__lt=at, taken_at__gte=at - LONGEST_GAP
    )
    return recent.aggregate(latest=Max("taken_at"))["latest"] or at - timedelta(minutes=1)
