"""What dead workers leave behind, and what is long past its deadline."""

from __future__ import annotations

from dataclasses import dataclass

from queue_app.core.fingerprint import fingerprint
from queue_app.core.records import ClaimedTask, TaskRef
from queue_app.core.states import Status
from queue_app.sql.database import fetch_all


@dataclass(frozen=True, slots=True)
class Reaped:
    """A task whose worker is gone, and what became of it."""

    status: Status
    task: TaskRef


# What nobody living holds goes back to its place; the attempt stays counted as the fence.
# From its second crash on a task comes back alone, some seconds apart from the others that
# the same worker held: so the one that kills workers is told from its neighbours, and is
# dead-lettered without them once it has done so too often.
_ORPHANS = """
WITH lost AS (
    SELECT task.id, task.attempt, task.started_at, task.worker_id,
        task.cancel_requested_at IS NOT NULL AS cancelled,
        task.crashes + 1 >= %(max_crashes)s AS hopeless,
        task.crashes > 0 AS suspect
    FROM queue_app_task AS task LEFT JOIN queue_app_worker AS worker ON worker.id = task.worker_id
    WHERE task.status = 'executing' AND (worker.id IS NULL OR worker.status IN ('dead', 'stopped'))
    LIMIT %(limit)s FOR UPDATE OF task SKIP LOCKED
), fates AS (
    SELECT *,
        CASE WHEN cancelled THEN 'cancelled' WHEN hopeless THEN 'dead_letter'
            WHEN suspect THEN 'scheduled' ELSE 'queued' END AS fate,
        row_number() OVER (PARTITION BY suspect ORDER BY id) AS number
    FROM lost
), done AS (
    UPDATE queue_app_task AS t
    SET status = fates.fate, crashes = t.crashes + 1, deadline = NULL,
        started_at = CASE WHEN fates.fate IN ('queued', 'scheduled') THEN NULL ELSE t.started_at END,
        worker_id = CASE WHEN fates.fate IN ('queued', 'scheduled') THEN NULL ELSE t.worker_id END,
        queued_at = CASE WHEN fates.fate = 'scheduled' THEN NULL ELSE t.queued_at END,
        run_after = CASE WHEN fates.fate = 'scheduled'
            THEN clock_timestamp() + fates.number * interval '2 seconds' ELSE t.run_after END,
        finished_at = CASE WHEN fates.fate IN ('cancelled', 'dead_letter') THEN clock_timestamp() END
    FROM fates
    WHERE t.id = fates.id AND t.status = 'executing' AND t.attempt = fates.attempt
    RETURNING t.*
), attempts AS (
    INSERT INTO queue_app_taskattempt
        (task_id, attempt, worker_id, started_at, finished_at, exception_class, message, traceback)
    SELECT lost.id, lost.attempt, lost.worker_id, lost.started_at, clock_timestamp(), %(exception)s, %(message)s, ''
    FROM lost JOIN done USING (id)
    ON CONFLICT (task_id, attempt) DO NOTHING
), dead AS (
    INSERT INTO queue_app_deadletter
        (id, task_id, task_type, queue, priority, "user", reason, attempts, exception_class, message, died_at,
         expires_at, replayed_by, fingerprint)
    SELECT gen_random_uuid(), id, task_type, queue, priority, "user", 'crash_loop', attempt, %(exception)s,
        %(message)s, clock_timestamp(), clock_timestamp() + make_interval(secs => %(retention)s), '', %(fingerprint)s
    FROM done WHERE status = 'dead_letter'
    ON CONFLICT DO NOTHING
)
SELECT status, id, task_type, queue, priority, capabilities, queued_at, "user", concurrency_key, weight FROM done
"""
WORKER_DIED = "queue_app.exceptions.WorkerDied"
_MESSAGE = "The worker died, or was out of reach for too long, while it had the task."


def reap_orphans(limit: int, *, max_crashes: int, dead_letter_seconds: float) -> list[Reaped]:
    """End the attempts of workers that are gone; return the tasks and what became of each."""
    params = {
        "limit": limit,
        "max_crashes": max_crashes,
        "retention": dead_letter_seconds,
        "exception": WORKER_DIED,
        "message": _MESSAGE,
        "fingerprint": fingerprint(WORKER_DIED, _MESSAGE),
    }
    return [Reaped(Status(row[0]), TaskRef.from_row(row[1:])) for row in fetch_all(_ORPHANS, params)]


OVERDUE = "t.status = 'executing' AND t.deadline < statement_timestamp() - make_interval(secs => %s)"
_OVERDUE = f"""
SELECT t.id, t.attempt, t.task_type, t.queue, t.priority, t.capabilities, t."user", t.created_at, t.queued_at,
    t.started_at, EXTRACT(EPOCH FROM t.deadline - t.started_at)::float8,
    COALESCE(t.max_retries, queue.max_retries, policy.max_retries, 3), t.retry_delay, t.failures, '[]', '{{}}',
    t.concurrency_key, t.weight, t.worker_id
FROM queue_app_task AS t
    LEFT JOIN queue_app_prioritypolicy AS policy ON policy.priority = t.priority
    LEFT JOIN queue_app_queue AS queue ON queue.name = t.queue
WHERE {OVERDUE}
LIMIT %s
"""


def overdue(grace_seconds: float, limit: int) -> list[ClaimedTask]:
    """Return executing tasks that are so long past their deadline that their worker must be stuck."""
    return [ClaimedTask.from_row(row) for row in fetch_all(_OVERDUE, [grace_seconds, limit])]
