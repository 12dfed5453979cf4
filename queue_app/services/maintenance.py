"""Upkeep that Celery beat runs: promotion, expiry, statistics, purge. Bounded, idempotent, safe twice at once.

Each job leaves the time of its last success in the rows. So the scheduler sees which ones
are overdue and runs those itself: the queue works without Celery.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from django.db import Error as DatabaseError
from django.utils import timezone

from queue_app import conf
from queue_app.exceptions import IndexUnavailable
from queue_app.rows import throttle, upkeep
from queue_app.services import jobs
from queue_app.services.expire import expire_eager
from queue_app.services.promote import JOB as PROMOTE
from queue_app.services.promote import promote as promote_aged
from queue_app.services.purge import JOB as PURGE
from queue_app.services.purge import purge_tasks
from queue_app.services.snapshot import take_snapshot

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
