"""Record how attempts ended, in batches: fenced by the attempt and the worker that it was granted to."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from queue_app.core.records import Outcome
from queue_app.core.states import Status
from queue_app.sql.database import BY_KEYS_ONLY, fetch_all, fetch_together

_COMPLETE = """
UPDATE queue_app_task AS t
SET status = CASE WHEN t.cancel_requested_at IS NULL THEN 'completed' ELSE 'cancelled' END,
    finished_at = clock_timestamp(), deadline = NULL, started_at = v.started_at
FROM unnest(%s::uuid[], %s::int[], %s::uuid[], %s::timestamptz[]) AS v (id, attempt, worker_id, started_at)
WHERE t.id = ANY(%s) AND t.id = v.id AND t.attempt = v.attempt AND t.worker_id = v.worker_id
    AND t.status || '' = 'executing'
RETURNING t.id, t.attempt, t.status
"""

# With results: stored in the same statement, for those rows that the fence let pass.
_COMPLETE_WITH_RESULTS = """
WITH v AS (
    SELECT * FROM unnest(%s::uuid[], %s::int[], %s::uuid[], %s::timestamptz[], %s::text[])
        AS v (id, attempt, worker_id, started_at, result)
), done AS (
    UPDATE queue_app_task AS t
    SET status = CASE WHEN t.cancel_requested_at IS NULL THEN 'completed' ELSE 'cancelled' END,
        finished_at = clock_timestamp(), deadline = NULL, started_at = v.started_at
    FROM v
    WHERE t.id = ANY(%s) AND t.id = v.id AND t.attempt = v.attempt AND t.worker_id = v.worker_id
        AND t.status || '' = 'executing'
    RETURNING t.id, t.attempt, t.status
), results AS (
    INSERT INTO queue_app_taskresult (task_id, value)
    SELECT v.id, v.result::jsonb FROM v JOIN done USING (id, attempt)
    WHERE v.result IS NOT NULL AND done.status = 'completed'
    ON CONFLICT (task_id) DO UPDATE SET value = EXCLUDED.value
)
SELECT id, attempt, status FROM done
"""


#: So few outcomes are recorded by a prepared statement, which compares each with each. More get a plan of their own.
FEW = 16
# Goes before a prepared one: a plan that was made when the tables were empty must suit full ones.
_LOOK_UP = (f"SELECT {BY_KEYS_ONLY}", ())

Attempt = tuple[uuid.UUID, int]


def complete(outcomes: Sequence[Outcome]) -> dict[Attempt, Status]:
    """Mark the attempts' tasks as completed, or as cancelled where that was asked for meanwhile.

    Returns {(id, attempt): status now} of those that still held their task. The result of a
    cancelled one is not stored.
    """
    ids = [outcome.task.id for outcome in outcomes]
    params: list[object] = [
        ids,
        [outcome.task.attempt for outcome in outcomes],
        [outcome.task.worker_id for outcome in outcomes],
        [outcome.started_at for outcome in outcomes],
    ]
    if all(outcome.result is None for outcome in outcomes):
        return _by_attempt(_run(_COMPLETE, [*params, ids], len(ids)))
    results = [outcome.result for outcome in outcomes]
    return _by_attempt(_run(_COMPLETE_WITH_RESULTS, [*params, results, ids], len(ids)))


def _run(sql: str, params: Sequence[object], size: int) -> list[tuple[Any, ...]]:
    return fetch_together(_LOOK_UP, (sql, params)) if size <= FEW else fetch_all(sql, params)


def _by_attempt(found: list[tuple[Any, ...]]) -> dict[Attempt, Status]:
    return {(task_id, attempt): Status(status) for task_id, attempt, status in found}


_SNOOZE = """
UPDATE queue_app_task AS t
SET status = CASE WHEN t.cancel_requested_at IS NULL THEN 'scheduled' ELSE 'cancelled' END,
    run_after = clock_timestamp() + make_interval(secs => v.seconds), queued_at = NULL, deadline = NULL,
    finished_at = CASE WHEN t.cancel_requested_at IS NULL THEN NULL ELSE clock_timestamp() END
FROM unnest(%s::uuid[], %s::int[], %s::uuid[], %s::float8[]) AS v (id, attempt, worker_id, seconds)
WHERE t.id = v.id AND t.attempt = v.attempt AND t.worker_id = v.worker_id AND t.status = 'executing'
RETURNING t.id, t.attempt, t.status
"""


def snooze(outcomes: Sequence[Outcome]) -> dict[Attempt, Status]:
    """Put tasks back for a while, no failure counted; return the attempts that still held their task."""
    params = [
        [outcome.task.id for outcome in outcomes],
        [outcome.task.attempt for outcome in outcomes],
        [outcome.task.worker_id for outcome in outcomes],
        [outcome.snooze for outcome in outcomes],
    ]
    return _by_attempt(fetch_all(_SNOOZE, params))


@dataclass(frozen=True, slots=True)
class Verdict:
    """What becomes of a failed attempt: a retry after ``retry_in`` seconds, else the final ``status``."""

    outcome: Outcome
    status: str
    retry_in: float | None
    reason: str | None = None  # of a dead letter; None: its retries are exhausted
    fingerprint: str = ""  # of a dead letter, see core.fingerprint


_FAIL = """
WITH v AS (
    SELECT * FROM unnest(%s::uuid[], %s::int[], %s::uuid[], %s::text[], %s::float8[], %s::timestamptz[],
        %s::timestamptz[], %s::text[], %s::text[], %s::text[], %s::text[], %s::text[])
        AS v (id, attempt, worker_id, status, retry_in, started_at,
            finished_at, exception_class, message, traceback, reason, fingerprint)
), done AS (
    UPDATE queue_app_task AS t
    SET status = CASE WHEN t.cancel_requested_at IS NULL THEN v.status ELSE 'cancelled' END,
        failures = t.failures + 1, deadline = NULL, started_at = v.started_at,
        run_after = CASE WHEN v.retry_in IS NULL OR t.cancel_requested_at IS NOT NULL THEN t.run_after
                    ELSE clock_timestamp() + make_interval(secs => v.retry_in) END,
        queued_at = CASE WHEN v.retry_in IS NULL OR t.cancel_requested_at IS NOT NULL THEN t.queued_at ELSE NULL END,
        finished_at = CASE WHEN v.retry_in IS NULL OR t.cancel_requested_at IS NOT NULL THEN clock_timestamp() END
    FROM v
    WHERE t.id = v.id AND t.attempt = v.attempt AND t.worker_id = v.worker_id AND t.status = 'executing'
    RETURNING t.id, t.attempt, t.task_type, t.queue, t.priority, t."user", t.status, t.worker_id
), attempts AS (
    INSERT INTO queue_app_taskattempt
        (task_id, attempt, worker_id, started_at, finished_at, exception_class, message, traceback)
    SELECT v.id, v.attempt, done.worker_id, v.started_at, v.finished_at, v.exception_class, v.message, v.traceback
    FROM v JOIN done USING (id, attempt)
    ON CONFLICT (task_id, attempt) DO NOTHING
), dead AS (
    INSERT INTO queue_app_deadletter
        (id, task_id, task_type, queue, priority, "user", reason, attempts, exception_class, message, died_at,
         expires_at, replayed_by, fingerprint)
    SELECT gen_random_uuid(), v.id, done.task_type, done.queue, done.priority, done."user",
        COALESCE(v.reason, 'retries_exhausted'), v.attempt, v.exception_class, v.message, clock_timestamp(),
        clock_timestamp() + make_interval(secs => %s), '', v.fingerprint
    FROM v JOIN done USING (id, attempt) WHERE done.status = 'dead_letter'
    ON CONFLICT DO NOTHING
)
SELECT id, attempt, status FROM done
"""


def fail(verdicts: Sequence[Verdict], dead_letter_seconds: float) -> dict[Attempt, Status]:
    """Record failed attempts and what becomes of their tasks; one that was to be cancelled is not tried again.

    Returns {(id, attempt): status now} of those that still held their task.
    """
    failures = [(verdict, verdict.outcome, verdict.outcome.failure) for verdict in verdicts]
    rows = [
        (
            outcome.task.id,
            outcome.task.attempt,
            outcome.task.worker_id,
            verdict.status,
            verdict.retry_in,
            outcome.started_at,
            outcome.finished_at,
            failure.exception_class,
            failure.message,
            failure.traceback,
            verdict.reason,
            verdict.fingerprint,
        )
        for verdict, outcome, failure in failures
        if failure is not None
    ]
    columns = [list(column) for column in zip(*rows, strict=True)]
    return _by_attempt(fetch_all(_FAIL, [*columns, dead_letter_seconds]))
