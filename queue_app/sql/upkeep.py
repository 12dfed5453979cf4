"""Delete what has served its time, in small batches; count what happened."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from queue_app.sql.database import execute, fetch_all

# Each kind of end is read along an index, up to its own retention: so a run reads what it deletes, and not what is kept
# for longer. Only that of the successes holds both kinds: failures that are kept are read over, from `after` on.
_COMPLETED = """
    status = 'completed' AND finished_at >= COALESCE(%(after)s::timestamptz, '-infinity')
    AND finished_at < statement_timestamp() - make_interval(secs => %(seconds)s)
"""
# A task stays as long as its dead letter can be replayed, whatever the retention of failures says.
_UNSUCCESSFUL = """
    status IN ('cancelled', 'dead_letter', 'expired', 'failed')
    AND finished_at >= COALESCE(%(after)s::timestamptz, '-infinity')
    AND finished_at < statement_timestamp() - make_interval(secs => %(seconds)s)
    AND (status <> 'dead_letter' OR NOT EXISTS (
        SELECT 1 FROM queue_app_deadletter AS letter
        WHERE letter.task_id = queue_app_task.id AND letter.replayed_at IS NULL AND letter.discarded_at IS NULL))
"""
# It also stays as long as it stands for its idempotency key.
_UNKEYED = "(idempotency_key IS NULL OR created_at < statement_timestamp() - make_interval(secs => %(key)s))"
# The children go in the same statement: they carry no foreign key that would do it.
_PURGE = """
WITH doomed AS (
    SELECT id FROM queue_app_task WHERE {which} AND {unkeyed}
    ORDER BY finished_at LIMIT %(limit)s FOR UPDATE SKIP LOCKED
), payloads AS (DELETE FROM queue_app_taskpayload USING doomed WHERE task_id = doomed.id),
results AS (DELETE FROM queue_app_taskresult USING doomed WHERE task_id = doomed.id),
attempts AS (DELETE FROM queue_app_taskattempt USING doomed WHERE task_id = doomed.id),
progress AS (DELETE FROM queue_app_taskprogress USING doomed WHERE task_id = doomed.id),
logs AS (DELETE FROM queue_app_tasklog USING doomed WHERE task_id = doomed.id)
DELETE FROM queue_app_task AS t USING doomed WHERE t.id = doomed.id RETURNING t.finished_at
"""
_PURGE_COMPLETED, _PURGE_UNSUCCESSFUL = (
    _PURGE.format(which=each, unkeyed=_UNKEYED) for each in (_COMPLETED, _UNSUCCESSFUL)
)

_COUNTS = """
SELECT queue, sum(enqueued)::int, sum(completed)::int, sum(failed)::int FROM (
    SELECT queue, 1 AS enqueued, 0 AS completed, 0 AS failed FROM queue_app_task
    WHERE id >= %(first_id)s AND created_at >= %(since)s AND created_at < %(until)s
    UNION ALL
    SELECT queue, 0, (status = 'completed')::int, (status IN ('failed', 'dead_letter'))::int FROM queue_app_task
    WHERE finished_at >= %(since)s AND finished_at < %(until)s
) AS events GROUP BY queue
"""

# Of what ended: how long it had been queued, and how long it ran then. A task that never started has neither.
_PERCENTILES = """
SELECT queue, percentile_cont(ARRAY[0.5, 0.95, 0.99]) WITHIN GROUP (ORDER BY waited),
    percentile_cont(ARRAY[0.5, 0.95, 0.99]) WITHIN GROUP (ORDER BY ran)
FROM (
    SELECT queue, GREATEST(0, EXTRACT(EPOCH FROM started_at - queued_at))::float8 AS waited,
        GREATEST(0, EXTRACT(EPOCH FROM finished_at - started_at))::float8 AS ran
    FROM queue_app_task
    WHERE finished_at >= %s AND finished_at < %s AND started_at IS NOT NULL AND queued_at IS NOT NULL
) AS ended GROUP BY queue
"""


def percentiles(since: datetime, until: datetime) -> dict[str, dict[str, float]]:
    """Return {queue: {wait_p50, …, run_p99}} in seconds, of the tasks that ended between."""
    names = [f"{what}_p{share}" for what in ("wait", "run") for share in (50, 95, 99)]
    found = fetch_all(_PERCENTILES, [since, until])
    return {queue: dict(zip(names, [*waited, *ran], strict=True)) for queue, waited, ran in found}


def purge_audit(seconds: float, limit: int) -> int:
    """Delete old entries of the audit log; their ids begin with their time."""
    return execute(
        "DELETE FROM queue_app_auditentry WHERE id IN (SELECT id FROM queue_app_auditentry"
        " WHERE id < %s ORDER BY id LIMIT %s FOR UPDATE SKIP LOCKED)",
        [_first_id(datetime.now(UTC) - timedelta(seconds=seconds)), limit],
    )


def count_purgeable(success_seconds: float, failure_seconds: float, key_seconds: float) -> int:
    """Return how many tasks would be deleted by now, called until nothing is left."""
    count = 0
    for which, seconds in ((_COMPLETED, success_seconds), (_UNSUCCESSFUL, failure_seconds)):
        params = {"seconds": seconds, "key": key_seconds, "after": None}
        count += fetch_all(f"SELECT count(*) FROM queue_app_task WHERE {which} AND {_UNKEYED}", params)[0][0]
    return count


def purge_completed(seconds: float, key_seconds: float, limit: int, after: datetime | None = None) -> list[datetime]:
    """Delete at most ``limit`` completed tasks that are past their retention, oldest first; return when they ended.

    One that carries an idempotency key stays at least ``key_seconds`` from its creation on.
    Nothing that ended before ``after`` is looked at.
    """
    params = {"seconds": seconds, "key": key_seconds, "limit": limit, "after": after}
    return [row[0] for row in fetch_all(_PURGE_COMPLETED, params)]


def purge_unsuccessful(seconds: float, key_seconds: float, limit: int, after: datetime | None = None) -> list[datetime]:
    """Delete tasks that ended without a result; otherwise as ``purge_completed``."""
    params = {"seconds": seconds, "key": key_seconds, "limit": limit, "after": after}
    return [row[0] for row in fetch_all(_PURGE_UNSUCCESSFUL, params)]


def purge_dead_letters(limit: int) -> int:
    """Delete dead letters whose time is over; their tasks follow by the failure retention."""
    return execute(
        "DELETE FROM queue_app_deadletter WHERE id IN (SELECT id FROM queue_app_deadletter"
        " WHERE expires_at < statement_timestamp() LIMIT %s FOR UPDATE SKIP LOCKED)",
        [limit],
    )


def purge_operations(seconds: float, limit: int) -> int:
    """Delete operations that ended long ago; the dead letters that they replayed had the same time."""
    return execute(
        "DELETE FROM queue_app_operation WHERE id IN (SELECT id FROM queue_app_operation"
        " WHERE finished_at < statement_timestamp() - make_interval(secs => %s) LIMIT %s FOR UPDATE SKIP LOCKED)",
        [seconds, limit],
    )


def purge_stats(seconds: float, limit: int) -> int:
    """Delete old statistics."""
    return execute(
        "DELETE FROM queue_app_queuestats WHERE id IN (SELECT id FROM queue_app_queuestats"
        " WHERE taken_at < statement_timestamp() - make_interval(secs => %s) LIMIT %s FOR UPDATE SKIP LOCKED)",
        [seconds, limit],
    )


def purge_workers(seconds: float, limit: int) -> int:
    """Delete workers that ended long ago and hold nothing."""
    return execute(
        "DELETE FROM queue_app_worker AS w WHERE w.id IN (SELECT id FROM queue_app_worker"
        " WHERE status IN ('stopped', 'dead') AND stopped_at < statement_timestamp() - make_interval(secs => %s)"
        " LIMIT %s FOR UPDATE SKIP LOCKED)"
        " AND NOT EXISTS (SELECT 1 FROM queue_app_task t WHERE t.worker_id = w.id AND t.status = 'executing')",
        [seconds, limit],
    )


def count_transitions(since: datetime, until: datetime) -> dict[str, dict[str, int]]:
    """Return {queue: {enqueued, completed, failed}} of the time between, by two index scans: ids carry the time."""
    params = {"first_id": _first_id(since), "since": since, "until": until}
    return {row[0]: {"enqueued": row[1], "completed": row[2], "failed": row[3]} for row in fetch_all(_COUNTS, params)}


def _first_id(since: datetime) -> str:
    """Return the least id made at ``since``, less a minute for clocks that differ."""
    milliseconds = int((since.timestamp() - 60) * 1000)
    return f"{milliseconds:012x}" + "0" * 20
