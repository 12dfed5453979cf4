"""Transitions of tasks that wait, or return to the queue: due, cancel, reprioritise, run now, requeue, expire."""

import uuid
from collections.abc import Sequence
from datetime import datetime
from typing import Any, Final

from queue_app.core.records import TaskRef
from queue_app.core.states import Status
from queue_app.sql.columns import REF, effective
from queue_app.sql.database import fetch_all, fetch_locked
from queue_app.sql.snapshot import Cursor
from queue_app.sql.workflow_advance import TRY_SHARE

#: Condition for scheduled tasks whose time has come within the last minute, or comes later.
RECENTLY: Final = "run_after > statement_timestamp() - interval '1 minute'"
#: Condition for tasks that waited for a signal, if their time (``run_after``) is over.
TIMED_OUT: Final = "status = 'blocked' AND attempt > 0 AND queued_at IS NULL"
# Tasks that become due together are queued in the order of their times, 8 µs apart: the resolution of a score.
_DUE: Final = f"""
WITH due AS (
    SELECT id, run_after FROM queue_app_task WHERE status = 'scheduled' AND run_after <= statement_timestamp()
    ORDER BY run_after LIMIT %s FOR UPDATE SKIP LOCKED
), late AS (
    SELECT id, run_after FROM queue_app_task AS t
    WHERE {TIMED_OUT} AND run_after <= statement_timestamp()
        AND (t.workflow_id IS NULL OR {TRY_SHARE.format(id="t.workflow_id")})
        AND EXISTS (SELECT FROM queue_app_stepresult AS step WHERE step.task_id = t.id AND step.done_at IS NULL)
    ORDER BY run_after LIMIT %s FOR UPDATE SKIP LOCKED
), placed AS (
    SELECT id, now.clock + (row_number() OVER (ORDER BY run_after, id) - 1) * interval '8 microseconds' AS queued_at
    FROM (TABLE due UNION ALL TABLE late) AS due, (SELECT clock_timestamp() AS clock) AS now
)
UPDATE queue_app_task AS t SET status = 'queued', queued_at = placed.queued_at
FROM placed WHERE t.id = placed.id AND t.status IN ('scheduled', 'blocked')
RETURNING {REF}
"""
_DUE_RECENTLY: Final = _DUE.replace("ORDER BY run_after LIMIT", f"AND {RECENTLY} ORDER BY run_after LIMIT")

# What undoes another task is cancelled only if undoing is stopped.
_SPARED: Final = """
    AND (t.workflow_id IS NULL OR NOT EXISTS (
        SELECT FROM queue_app_workflownode AS node WHERE node.task_id = t.id AND node.compensates IS NOT NULL))"""
# Waiting tasks end here; the worker of an executing task is asked to stop it.
_CANCEL: Final = f"""
UPDATE queue_app_task AS t
SET status = CASE WHEN t.status = 'executing' THEN t.status ELSE 'cancelled' END,
    finished_at = CASE WHEN t.status = 'executing' THEN NULL ELSE clock_timestamp() END,
    cancel_requested_at = COALESCE(t.cancel_requested_at, clock_timestamp())
WHERE t.id = ANY(%s) AND t.status IN ('blocked', 'scheduled', 'queued', 'executing'){_SPARED}
RETURNING CASE WHEN t.status = 'executing' THEN t.status WHEN t.queued_at IS NULL THEN 'scheduled' ELSE 'queued' END,
    t.worker_id, {REF}
"""

# A task keeps the timeout that its old band gave it.
_REPRIORITISE: Final = f"""
UPDATE queue_app_task AS t SET priority = %s, timeout = {effective("timeout", "timeout_seconds", 600)}
WHERE t.id = ANY(%s) AND t.status IN ('blocked', 'scheduled', 'queued')
RETURNING t.status, {REF}
"""

# A task that sleeps wakes up: its sleep is over.
_RUN_NOW: Final = f"""
WITH woken AS (
    UPDATE queue_app_task AS t SET status = 'queued', queued_at = clock_timestamp()
    WHERE t.id = ANY(%s) AND t.status = 'scheduled'
    RETURNING t.*
), sleeps AS (
    UPDATE queue_app_stepresult AS step SET until = statement_timestamp() FROM woken
    WHERE step.task_id = woken.id AND step.kind = 'sleep' AND step.until > statement_timestamp()
)
SELECT {REF} FROM woken AS t
"""

# A task with an open dead letter is replayed instead. After its record was discarded or has expired, it returns here.
_REQUEUE: Final = f"""
UPDATE queue_app_task AS t
SET status = 'queued', failures = 0, crashes = 0, queued_at = clock_timestamp(), run_after = NULL,
    finished_at = NULL, deadline = NULL, cancel_requested_at = NULL
WHERE t.id = ANY(%s) AND t.status IN ('failed', 'expired', 'cancelled', 'dead_letter')
    AND NOT EXISTS (SELECT FROM queue_app_workflow AS flow WHERE flow.id = t.workflow_id AND flow.state = 'deleting')
RETURNING {REF}
"""

# Reads a range of the index of queued rows by time; tasks of other bands in that range are read and dropped.
_AGED: Final = f"""
SELECT {REF} FROM queue_app_task AS t
WHERE status = 'queued' AND priority = %s AND (queued_at, id) > (%s, %s) AND queued_at <= %s
ORDER BY queued_at, id LIMIT %s
"""

# Oldest first, read band by band, as the index has them. A row that a claim or another run holds is skipped, and so is
# one whose workflow another transaction has alone; the next run sees it again.
_EXPIRE: Final = f"""
WITH stale AS (
    SELECT oldest.id FROM generate_series(0, 4) AS band, LATERAL (
        SELECT id, queued_at FROM queue_app_task
        WHERE status = 'queued' AND queue = %s AND priority = band
            AND queued_at < statement_timestamp() - make_interval(secs => %s)
            AND (workflow_id IS NULL OR {TRY_SHARE.format(id="workflow_id")})
        ORDER BY queued_at, id LIMIT %s FOR UPDATE SKIP LOCKED
    ) AS oldest ORDER BY oldest.queued_at, oldest.id LIMIT %s
)
UPDATE queue_app_task AS t SET status = 'expired', finished_at = clock_timestamp()
FROM stale WHERE t.id = stale.id AND t.status = 'queued'
RETURNING {REF}
"""

_BEGINNING: Final = ("-infinity", uuid.UUID(int=0))


def make_due(limit: int, *, recent: bool = False) -> list[TaskRef]:
    """Queue at most ``limit`` scheduled tasks whose time has come, or has come ``recent``ly, earliest first."""
    return sorted(_refs(_DUE_RECENTLY if recent else _DUE, [limit, limit]), key=lambda ref: ref.queued_at)


def cancel(ids: Sequence[uuid.UUID], *, undoing: bool = False) -> list[tuple[Status, uuid.UUID | None, TaskRef]]:
    """Cancel waiting tasks and request it of executing ones; return (status before, worker, task) of each.

    With ``undoing``, compensations too.
    """
    found = fetch_locked(ids, _CANCEL.replace(_SPARED, "") if undoing else _CANCEL, [list(ids)])
    return [(Status(status), worker_id, TaskRef.from_row(row)) for status, worker_id, *row in found]


def reprioritise(ids: Sequence[uuid.UUID], priority: int) -> list[tuple[Status, TaskRef]]:
    """Change the band of waiting tasks, which keep their timeouts; return (status, task) of each changed one."""
    found = fetch_locked(ids, _REPRIORITISE, [priority, list(ids)])
    return [(Status(status), TaskRef.from_row(row)) for status, *row in found]


def run_now(ids: Sequence[uuid.UUID]) -> list[TaskRef]:
    """Queue the scheduled tasks among ``ids``; return them."""
    return [TaskRef.from_row(row) for row in fetch_locked(ids, _RUN_NOW, [list(ids)])]


def requeue(ids: Sequence[uuid.UUID]) -> list[TaskRef]:
    """Queue tasks again that ended without success, with a fresh retry budget; return them."""
    return [TaskRef.from_row(row) for row in fetch_locked(ids, _REQUEUE, [list(ids)])]


def aged_page(band: int, after: Cursor | None, until: datetime, limit: int) -> list[TaskRef]:
    """Return the queued tasks of a band that follow the cursor (queued_at, id) and were queued by ``until``."""
    return _refs(_AGED, [band, *(after or _BEGINNING), until, limit])


def expire(queue: str, older_than: float, limit: int) -> list[TaskRef]:
    """Expire at most ``limit`` tasks queued for more than ``older_than`` seconds, oldest first; return them."""
    return _refs(_EXPIRE, [queue, older_than, limit, limit])


def eager_queues() -> list[tuple[str, float]]:
    """Return (queue, seconds until a task is stale) of the queues that expire eagerly."""
    found = fetch_all(
        "SELECT name, stale_after_seconds FROM queue_app_queue"
        " WHERE expire_eagerly AND stale_after_seconds IS NOT NULL ORDER BY name"
    )
    return [(name, seconds) for name, seconds in found]


def _refs(sql: str, params: Sequence[Any]) -> list[TaskRef]:
    return [TaskRef.from_row(row) for row in fetch_all(sql, params)]
