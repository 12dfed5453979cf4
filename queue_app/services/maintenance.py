"""Upkeep that Celery beat runs: promotion, expiry, statistics, purge. Bounded, idempotent, safe twice at once.

Each job leaves the time of its last success in the rows. So the scheduler sees which ones
are overdue and runs those itself: the queue works without Celery.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from django.utils import timezone

from queue_app import conf
from queue_app.rows import throttle, upkeep
from queue_app.services import jobs
from queue_app.services.expire import expire_eager
from queue_app.services.promote import JOB as PROMOTE
from queue_app.services.promote import promote as promote_aged
from queue_app.services.snapshot import take_snapshot

logger = logging.getLogger("taskqueue")

PURGE_BATCH = 1000
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


@jobs.recorded("purge")
def purge(*, budget: int = 20) -> int:
    """Delete ended tasks past their retention, in at most ``budget`` small batches; return how many.

    Success and failure have retentions of their own. Dead letters, statistics and workers
    go with their own too.
    """
    retention = conf.get().retention
    deleted = 0
    for _ in range(budget):
        batch = upkeep.purge_tasks(
            retention.success_seconds, retention.failure_seconds, retention.idempotency_seconds, PURGE_BATCH
        )
        deleted += batch
        if batch < PURGE_BATCH:
            break
    upkeep.purge_dead_letters(PURGE_BATCH)
    upkeep.purge_replay_operations(retention.dead_letter_seconds, PURGE_BATCH)
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


JOBS: dict[str, Callable[[], int]] = {"promote": promote, "expire": expire, "snapshot": snapshot, "purge": purge}
#: How many times the interval of upkeep lies between two runs of a job on Celery's beat; once, where not said.
INTERVALS: dict[str, int] = {"purge": 10}


def run_overdue(*, every: bool = False) -> list[str]:
    """Run the jobs that nobody else has run for too long, or with ``every`` all; return the names of those done."""
    return [name for name, job in JOBS.items() if (every or _is_overdue(name)) and _succeeds(name, job)]


def _succeeds(name: str, job: Callable[[], int]) -> bool:
    """Run a job for itself: one that fails always must not keep the others from their work."""
    try:
        job()
    except Exception:
        logger.exception("%s failed", name)
        return False
    return True


def _is_overdue(name: str) -> bool:
    interval = conf.get().scheduler.maintenance_seconds * INTERVALS.get(name, 1)
    return not jobs.succeeded_within(name, OVERDUE_INTERVALS * interval)
