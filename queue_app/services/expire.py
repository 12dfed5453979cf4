"""Give up queued tasks that have waited so long that nobody wants them any more.

Crash points: before the commit nothing is expired. After the row and before the index, the
index proposes an expired task once; the row refuses it, and the entry is gone. A task that
is being claimed at the same moment is either expired or runs, as the row decides.
"""

from __future__ import annotations

from typing import Final

from queue_app import signals
from queue_app.core.events import EventName, occasion_of
from queue_app.core.states import Status
from queue_app.rows import expiry
from queue_app.services import events
from queue_app.services.hints import on_commit

BATCH = 500
#: So long may a task wait in a full queue whose own limit is not set, before it makes room for another.
DEFAULT_STALE_SECONDS: Final = 3600.0
#: A run deals with so many batches of one queue at most; the rest is the next run's.
MAX_BATCHES = 20
#: A limit that is longer than this is never.
MAX_SECONDS: Final = 10 * 365 * 86_400.0


def expire_stale(queue: str, older_than: float = DEFAULT_STALE_SECONDS, limit: int = BATCH) -> int:
    """Expire at most ``limit`` tasks that have been queued for more than ``older_than`` seconds; return how many.

    Oldest first, whatever their bands. Safe twice at once.
    """
    if not 0 <= older_than <= MAX_SECONDS:  # beyond the dates that PostgreSQL knows; false for NaN too
        return 0
    tasks = expiry.expire(queue, older_than, limit)
    if tasks:
        on_commit(lambda index: index.remove(tasks), "remove")
        events.publish_on_commit((occasion_of(EventName.EXPIRED, task, Status.EXPIRED), task.id) for task in tasks)
        signals.tasks_expired.send(None, queue=queue, count=len(tasks))
    return len(tasks)


def expire_eager() -> int:
    """Expire what is stale in the queues that ask for it without being full; return how many tasks."""
    return sum(_expire_queue(queue, seconds) for queue, seconds in expiry.eager_queues())


def _expire_queue(queue: str, seconds: float) -> int:
    expired = 0
    for _ in range(MAX_BATCHES):
        batch = expire_stale(queue, seconds, BATCH)
        expired += batch
        if batch < BATCH:
            break
    return expired
