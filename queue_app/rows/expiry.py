"""Give up queued tasks that are stale."""

from __future__ import annotations

from queue_app.core.records import TaskRef
from queue_app.rows.database import fetch_all

# Oldest first. A row that a claim or another runner holds is skipped; it is looked at again by the next run.
_EXPIRE = """
WITH stale AS (
    SELECT id FROM queue_app_task
    WHERE status = 'queued' AND queue = %s AND queued_at < statement_timestamp() - make_interval(secs => %s)
    ORDER BY queued_at, id LIMIT %s FOR UPDATE SKIP LOCKED
)
UPDATE queue_app_task AS t SET status = 'expired', finished_at = clock_timestamp()
FROM stale WHERE t.id = stale.id AND t.status = 'queued'
RETURNING t.id, t.task_type, t.queue, t.priority, t.capabilities, t.queued_at, t."user", t.concurrency_key, t.weight
"""


def expire(queue: str, older_than: float, limit: int) -> list[TaskRef]:
    """Expire at most ``limit`` tasks of a queue that have been queued for longer (s), oldest first; return them."""
    return [TaskRef.from_row(row) for row in fetch_all(_EXPIRE, [queue, older_than, limit])]


def eager_queues() -> list[tuple[str, float]]:
    """Return (queue, seconds until a task is stale) of the queues that expire eagerly."""
    found = fetch_all(
        "SELECT name, stale_after_seconds FROM queue_app_queue"
        " WHERE expire_eagerly AND stale_after_seconds IS NOT NULL ORDER BY name"
    )
    return [(row[0], row[1]) for row in found]
