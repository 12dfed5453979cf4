"""Transitions of tasks that wait: due, cancel, reprioritise."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from datetime import datetime

from queue_app.core.records import TaskRef
from queue_app.core.states import Status
from queue_app.sql.comparison import Cursor
from queue_app.sql.database import fetch_all

_REF = 't.id, t.task_type, t.queue, t.priority, t.capabilities, t.queued_at, t."user", t.concurrency_key, t.weight'

# Those that come due together are queued in the order of their times, 8 µs apart: the step of a score.
_DUE = f"""
WITH due AS (
    SELECT id, run_after FROM queue_app_task WHERE status = 'scheduled' AND run_after <= statement_timestamp()
    ORDER BY run_after LIMIT %s FOR UPDATE SKIP LOCKED
), placed AS (
    SELECT id, now.clock + (row_number() OVER (ORDER BY run_after, id) - 1) * interval '8 microseconds' AS queued_at
    FROM due, (SELECT clock_timestamp() AS clock) AS now
)
UPDATE queue_app_task AS t SET status = 'queued', queued_at = placed.queued_at
FROM placed WHERE t.id = placed.id AND t.status = 'scheduled'
RETURNING {_REF}
"""

# Queued and scheduled tasks end here; an executing one is only asked to.
_CANCEL = f"""
WITH before AS (
    SELECT id, status FROM queue_app_task WHERE id = ANY(%s) ORDER BY id FOR UPDATE
)
UPDATE queue_app_task AS t
SET status = CASE WHEN before.status = 'executing' THEN t.status ELSE 'cancelled' END,
    finished_at = CASE WHEN before.status = 'executing' THEN NULL ELSE clock_timestamp() END,
    cancel_requested_at = COALESCE(t.cancel_requested_at, clock_timestamp())
FROM before
WHERE t.id = before.id AND before.status IN ('scheduled', 'queued', 'executing') AND t.status = before.status
RETURNING before.status, t.worker_id, {_REF}
"""

_REPRIORITISE = f"""
WITH before AS (
    SELECT id, status FROM queue_app_task WHERE id = ANY(%s) ORDER BY id FOR UPDATE
)
UPDATE queue_app_task AS t SET priority = %s
FROM before
WHERE t.id = before.id AND before.status IN ('scheduled', 'queued') AND t.status = before.status
RETURNING before.status, {_REF}
"""

_RUN_NOW = f"""
WITH before AS (
    SELECT id FROM queue_app_task WHERE id = ANY(%s) AND status = 'scheduled' ORDER BY id FOR UPDATE
)
UPDATE queue_app_task AS t SET status = 'queued', queued_at = clock_timestamp()
FROM before WHERE t.id = before.id AND t.status = 'scheduled'
RETURNING {_REF}
"""

# A dead letter is replayed instead. One whose record has been discarded, or has expired, comes back this way.
_REQUEUE = f"""
WITH before AS (
    SELECT id FROM queue_app_task WHERE id = ANY(%s) AND status IN ('failed', 'expired', 'cancelled', 'dead_letter')
    ORDER BY id FOR UPDATE
)
UPDATE queue_app_task AS t
SET status = 'queued', failures = 0, crashes = 0, queued_at = clock_timestamp(), run_after = NULL,
    finished_at = NULL, deadline = NULL, cancel_requested_at = NULL
FROM before
WHERE t.id = before.id AND t.status IN ('failed', 'expired', 'cancelled', 'dead_letter')
RETURNING {_REF}
"""


def run_now(ids: Sequence[uuid.UUID]) -> list[TaskRef]:
    """Queue those of the tasks that are scheduled; return them."""
    return [TaskRef.from_row(row) for row in fetch_all(_RUN_NOW, [list(ids)])]


def requeue(ids: Sequence[uuid.UUID]) -> list[TaskRef]:
    """Queue those of the tasks again that ended without success, with a fresh retry budget; return them."""
    return [TaskRef.from_row(row) for row in fetch_all(_REQUEUE, [list(ids)])]


def make_due(limit: int) -> list[TaskRef]:
    """Queue at most ``limit`` scheduled tasks whose time has come, earliest first."""
    return sorted((TaskRef.from_row(row) for row in fetch_all(_DUE, [limit])), key=lambda ref: ref.queued_at)


def cancel(ids: Sequence[uuid.UUID]) -> list[tuple[Status, uuid.UUID | None, TaskRef]]:
    """Cancel what waits and ask what runs to stop; return (status before, worker, task) of those it applied to."""
    return [(Status(row[0]), row[1], TaskRef.from_row(row[2:])) for row in fetch_all(_CANCEL, [list(ids)])]


def reprioritise(ids: Sequence[uuid.UUID], priority: int) -> list[tuple[Status, TaskRef]]:
    """Change the band of waiting tasks; return (status, task) of those it applied to."""
    return [(Status(row[0]), TaskRef.from_row(row[1:])) for row in fetch_all(_REPRIORITISE, [list(ids), priority])]


def seconds_until_due() -> float | None:
    """Return the seconds until the next scheduled task is due; ``None`` when nothing is scheduled."""
    found = fetch_all(
        "SELECT EXTRACT(EPOCH FROM min(run_after) - clock_timestamp())::float8"
        " FROM queue_app_task WHERE status = 'scheduled'"
    )
    value: float | None = found[0][0]
    return value


# By the index of queued rows; what is read beyond the band is what was queued in the same time.
_AGED = """
SELECT id, task_type, queue, priority, capabilities, queued_at, "user", concurrency_key, weight FROM queue_app_task
WHERE status = 'queued' AND priority = %s AND (queued_at, id) > (%s, %s) AND queued_at <= %s
ORDER BY queued_at, id LIMIT %s
"""


_BEGINNING = ("-infinity", uuid.UUID(int=0))


def aged_page(band: int, after: Cursor | None, until: datetime, limit: int) -> list[TaskRef]:
    """Return the queued tasks of a band that follow the cursor (queued_at, id) and were queued by ``until``."""
    return [TaskRef.from_row(row) for row in fetch_all(_AGED, [band, *(after or _BEGINNING), until, limit])]


def clock() -> datetime:
    """Return the database's time, the clock of ``queued_at``."""
    now: datetime = fetch_all("SELECT clock_timestamp()")[0][0]
    return now


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
