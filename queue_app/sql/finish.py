"""Record how attempts ended, in batches, fenced by their grants; or end them and grant the next tasks."""

import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, Final

from queue_app import conf
from queue_app.core.limits import Scope
from queue_app.core.records import AttemptKey, ClaimedTask, Outcome, ProgressReport, Proposal
from queue_app.core.states import Status
from queue_app.encryption import sealed_if
from queue_app.sql.claim import GRANT
from queue_app.sql.columns import CLAIMED_WITHOUT_PAYLOAD, FENCE, GRANTED, INSERT_ATTEMPTS, INSERT_DEAD_LETTERS, fence
from queue_app.sql.database import (
    BATCH_BY_KEYS,
    GENERATION_LOCK,
    LOOK_UP_BATCH,
    columns_of,
    execute,
    fetch_all,
    fetch_prepared,
    fetch_together,
    fetch_value,
    lock_rows,
)
from queue_app.sql.prepared import Row, Statement

# The `|| ''` hides the partial index of executing tasks from the planner. A task that can be undone, or undoes
# another, and was asked to stop too late has completed: what it did counts.
_DONE: Final = """
UPDATE queue_app_task AS t
SET status = CASE WHEN t.cancel_requested_at IS NULL OR (
        SELECT num_nonnulls(node.compensation, node.compensates) > 0 FROM queue_app_workflownode AS node
        WHERE node.task_id = t.id
    ) THEN 'completed' ELSE 'cancelled' END,
    finished_at = clock_timestamp(), deadline = NULL, started_at = v.started_at
FROM {ended}
WHERE t.id = ANY(%s) AND {granted} AND t.status || '' = 'executing'
RETURNING t.id, t.attempt, v.leased_at, t.status
"""
_COMPLETE: Final = _DONE.format(
    ended=f"unnest({FENCE}, %s::timestamptz[]) AS v (id, attempt, worker_id, leased_at, started_at)", granted=GRANTED
)
# Stores the results of the tasks that pass the fence in the same statement.
COMPLETE_WITH_RESULTS: Final = f"""
WITH v AS (
    SELECT * FROM unnest({FENCE}, %s::timestamptz[], %s::text[])
        AS v (id, attempt, worker_id, leased_at, started_at, result)
), done AS ({_DONE.format(ended="v", granted=GRANTED)}), results AS (
    INSERT INTO queue_app_taskresult (task_id, value)
    SELECT v.id, v.result::jsonb FROM v JOIN done USING (id, attempt, leased_at)
    WHERE v.result IS NOT NULL AND done.status = 'completed'
    ON CONFLICT (task_id) DO UPDATE SET value = EXCLUDED.value
)
SELECT id, attempt, leased_at, status FROM done
"""


def complete(outcomes: Sequence[Outcome]) -> dict[AttemptKey, Status]:
    """Mark the attempts' tasks as completed, or as cancelled if that was requested meanwhile.

    What can be undone, or undoes another task, is completed nevertheless.

    Returns {grant: status now} of the attempts that still held their task. The result of a
    cancelled task is not stored.
    """
    if any(outcome.result is not None for outcome in outcomes):
        sql, params = COMPLETE_WITH_RESULTS, completion(outcomes)
    else:
        columns = [*_fence(outcomes), [outcome.started_at for outcome in outcomes]]
        sql, params = _COMPLETE, [*columns, columns[0]]
    return _by_attempt(fetch_prepared(LOOK_UP_BATCH, (sql, params)))


def completion(outcomes: Sequence[Outcome]) -> list[Any]:
    """Return the parameters of ``COMPLETE_WITH_RESULTS``."""
    columns = [*_fence(outcomes), [one.started_at for one in outcomes]]
    return [*columns, [sealed_if(one.result, one.task.task_type) for one in outcomes], columns[0]]


def _fence(outcomes: Sequence[Outcome]) -> list[list[Any]]:
    return fence([outcome.task for outcome in outcomes])


def _by_attempt(found: list[Row]) -> dict[AttemptKey, Status]:
    return {(task_id, attempt, leased_at): Status(status) for task_id, attempt, leased_at, status in found}


_SNOOZE: Final = f"""
UPDATE queue_app_task AS t
SET status = CASE WHEN t.cancel_requested_at IS NULL THEN 'scheduled' ELSE 'cancelled' END,
    run_after = clock_timestamp() + make_interval(secs => v.seconds), queued_at = NULL, deadline = NULL,
    finished_at = CASE WHEN t.cancel_requested_at IS NULL THEN NULL ELSE clock_timestamp() END
FROM unnest({FENCE}, %s::float8[]) AS v (id, attempt, worker_id, leased_at, seconds)
WHERE {GRANTED} AND t.status = 'executing'
RETURNING t.id, t.attempt, v.leased_at, t.status
"""


def snooze(outcomes: Sequence[Outcome]) -> dict[AttemptKey, Status]:
    """Delay tasks without counting a failure; return {grant: status now} as ``complete`` does."""
    params = [*_fence(outcomes), [outcome.snooze for outcome in outcomes]]
    return _by_attempt(fetch_all(_SNOOZE, params))


# The caller has locked the rows. If a signal came before that, or the time is over, the task is due now.
_WAIT: Final = f"""
UPDATE queue_app_task AS t
SET status = CASE WHEN t.cancel_requested_at IS NOT NULL THEN 'cancelled' WHEN v.is_over THEN 'scheduled'
        ELSE 'blocked' END,
    run_after = CASE WHEN v.is_over THEN clock_timestamp() ELSE v.until END, queued_at = NULL, deadline = NULL,
    finished_at = CASE WHEN t.cancel_requested_at IS NULL THEN NULL ELSE clock_timestamp() END
FROM (
    SELECT v.*, step.until, COALESCE(step.until <= statement_timestamp(), false) OR EXISTS (
        SELECT FROM queue_app_signal AS s WHERE s.task_id = v.id AND s.name = step.signal AND s.taken_at IS NULL
    ) OR EXISTS (
        SELECT FROM queue_app_signal AS s
        WHERE s.workflow_id = own.workflow_id AND s.name = step.signal AND s.taken_at IS NULL
    ) AS is_over
    FROM unnest({FENCE}) AS v (id, attempt, worker_id, leased_at)
        JOIN queue_app_task AS own ON own.id = v.id
        JOIN queue_app_stepresult AS step ON step.task_id = v.id AND step.done_at IS NULL
) AS v
WHERE {GRANTED} AND t.status = 'executing'
RETURNING t.id, t.attempt, v.leased_at, t.status
"""


def wait(outcomes: Sequence[Outcome]) -> dict[AttemptKey, Status]:
    """Let tasks wait for their signals; return {grant: status now} as ``complete`` does."""
    return _by_attempt(fetch_all(_WAIT, _fence(outcomes)))


@dataclass(frozen=True, slots=True)
class Verdict:
    """The consequence of a failed attempt: a retry after ``retry_in`` seconds, else the final ``status``.

    ``outcome`` has a failure.
    """

    outcome: Outcome
    status: str
    retry_in: float | None
    reason: str | None = None  # of a dead letter; None: retries exhausted
    fingerprint: str = ""  # of a dead letter, see core.fingerprint


_FAIL: Final = f"""
WITH v AS (
    SELECT * FROM unnest({FENCE}, %s::text[], %s::float8[], %s::timestamptz[],
        %s::timestamptz[], %s::text[], %s::text[], %s::text[], %s::text[], %s::text[])
        AS v (id, attempt, worker_id, leased_at, status, retry_in, started_at,
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
    WHERE {GRANTED} AND t.status = 'executing'
    RETURNING t.id, t.attempt, v.leased_at, t.task_type, t.queue, t.priority, t."user", t.status, t.worker_id
), attempts AS (
    {INSERT_ATTEMPTS}
    SELECT v.id, v.attempt, done.worker_id, v.started_at, v.finished_at, v.exception_class, v.message, v.traceback
    FROM v JOIN done USING (id, attempt, leased_at)
    ON CONFLICT (task_id, attempt) DO NOTHING
), dead AS (
    {INSERT_DEAD_LETTERS}
    SELECT gen_random_uuid(), v.id, done.task_type, done.queue, done.priority, done."user",
        COALESCE(v.reason, 'retries_exhausted'), v.attempt, v.exception_class, v.message, clock_timestamp(),
        clock_timestamp() + make_interval(secs => %s), '', v.fingerprint
    FROM v JOIN done USING (id, attempt, leased_at) WHERE done.status = 'dead_letter'
    ON CONFLICT DO NOTHING
)
SELECT id, attempt, leased_at, status FROM done
"""


_of_verdict: Final = attrgetter(
    "outcome.task.id", "outcome.task.attempt", "outcome.task.worker_id", "outcome.task.leased_at", "status",
    "retry_in", "outcome.started_at", "outcome.finished_at", "outcome.failure.exception_class",
    "outcome.failure.message", "outcome.failure.traceback", "reason", "fingerprint",
)  # fmt: skip


def fail(verdicts: Sequence[Verdict], dead_letter_seconds: float) -> dict[AttemptKey, Status]:
    """Record failed attempts; a task with a requested cancellation is not retried. Returns as ``complete`` does."""
    columns = [list(column) for column in zip(*map(_of_verdict, verdicts), strict=True)]
    return _by_attempt(fetch_all(_FAIL, [*columns, dead_letter_seconds]))


# As in ``sql.claim``, the shared lock comes first. This commit waits for the disk, as every end does.
_LOCK_CLAIMS: Final = f"""
SELECT pg_advisory_xact_lock_shared(%s), set_config('lock_timeout', '1s', true), {BATCH_BY_KEYS}
"""
# The new tasks take the slots of the ended ones. So nothing is granted unless every attempt still held its task.
_TURN_OVER: Final = f"""
{COMPLETE_WITH_RESULTS.rsplit("SELECT id, attempt, leased_at, status FROM done", 1)[0]}, granted AS (
    {GRANT.replace("RETURNING", "AND (SELECT count(*) FROM done) = %s RETURNING")}
)
SELECT (SELECT string_agg(concat_ws(' ', id, attempt, leased_at, status), ',') FROM done), granted.*
FROM (SELECT 1) AS once LEFT JOIN granted ON true
"""


def turn_over(
    outcomes: Sequence[Outcome], proposal: Proposal, worker_id: uuid.UUID
) -> tuple[dict[AttemptKey, Status], list[ClaimedTask]]:
    """Complete attempts and grant the proposed tasks; return the states as ``complete`` does, and the tasks.

    Grants nothing if one of the attempts no longer held its task.
    """
    ids = [task_id for task_id, _ in proposal.tasks]
    factor, stamp = conf.get().retry.timeout_factor, proposal.leased_at
    params = [*completion(outcomes), worker_id, stamp, factor, ids, ids, stamp, proposal.generation, worker_id]
    rows = fetch_prepared((_LOCK_CLAIMS, [GENERATION_LOCK]), (_TURN_OVER, [*params, len(outcomes)]))
    ended = [part.split(" ") for part in (rows[0][0] or "").split(",") if part]
    granted = {row[1]: ClaimedTask.from_row(row[1:]) for row in rows if row[1] is not None}
    held = {(uuid.UUID(task_id), int(attempt), int(stamp)): Status(status) for task_id, attempt, stamp, status in ended}
    return held, [granted[task_id] for task_id in ids if task_id in granted]


# Store the progress reports of attempts, fenced as their outcomes are. The commits do not wait for the disk.

_RELAXED: Final = ("SELECT set_config('synchronous_commit', 'off', true)", ())
_HELD: Final = f"JOIN queue_app_task AS t ON {GRANTED} AND t.status = 'executing'"

_PROGRESS: Final = f"""
INSERT INTO queue_app_taskprogress (task_id, attempt, fraction, message, updated_at)
SELECT v.id, v.attempt, v.fraction, v.message, clock_timestamp()
FROM unnest({FENCE}, %s::float8[], %s::text[]) AS v (id, attempt, worker_id, leased_at, fraction, message)
{_HELD}
ON CONFLICT (task_id) DO UPDATE
SET attempt = EXCLUDED.attempt, fraction = EXCLUDED.fraction, message = EXCLUDED.message,
    updated_at = EXCLUDED.updated_at
RETURNING task_id
"""

_LINES: Final = f"""
INSERT INTO queue_app_tasklog (task_id, attempt, lines, dropped, updated_at)
SELECT v.id, v.attempt, v.lines, v.dropped, clock_timestamp()
FROM unnest({FENCE}, %s::text[], %s::int[]) AS v (id, attempt, worker_id, leased_at, lines, dropped)
{_HELD}
ON CONFLICT (task_id, attempt) DO UPDATE
SET lines = EXCLUDED.lines, dropped = EXCLUDED.dropped, updated_at = EXCLUDED.updated_at
RETURNING task_id
"""

_STACK: Final = f"""
UPDATE queue_app_taskstack AS asked SET text = v.stack, answered_at = clock_timestamp()
FROM unnest({FENCE}, %s::text[]) AS v (id, attempt, worker_id, leased_at, stack) {_HELD}
WHERE asked.task_id = v.id AND asked.attempt = v.attempt
RETURNING asked.task_id
"""

# At most a year from now: the same limit as in a claim.
_EXTEND: Final = f"""
UPDATE queue_app_task AS t
SET deadline = LEAST(t.deadline + make_interval(secs => v.seconds), clock_timestamp() + interval '1 year')
FROM unnest({FENCE}, %s::float8[]) AS v (id, attempt, worker_id, leased_at, seconds)
WHERE {GRANTED} AND t.status = 'executing'
RETURNING t.id
"""


def store_progress(reports: Sequence[ProgressReport]) -> None:
    """Store the progress of the attempts that still hold their task."""
    _store(_PROGRESS, reports, "progress", "message")


def store_lines(reports: Sequence[ProgressReport]) -> None:
    """Store the log lines of the attempts that still hold their task."""
    _store(_LINES, reports, "lines", "dropped")


def store_stacks(reports: Sequence[ProgressReport]) -> None:
    """Answer staff who asked for the stacks of attempts that still hold their task."""
    _store(_STACK, reports, "stack")


def extend(reports: Sequence[ProgressReport]) -> None:
    """Move the deadlines of the attempts that still hold their task."""
    _store(_EXTEND, reports, "extend", first=[lock_rows([report.task_id for report in reports])])


def _store(sql: str, reports: Sequence[ProgressReport], *names: str, first: Sequence[Statement] = ()) -> None:
    fields = ("task_id", "attempt", "worker_id", "leased_at", *names)
    columns: list[list[Any]] = [[getattr(report, name) for report in reports] for name in fields]
    fetch_together(_RELAXED, *first, (sql, columns))


def held_by(worker_id: uuid.UUID, attempts: Sequence[AttemptKey]) -> list[ClaimedTask]:
    """Return the tasks that the worker holds under one of these grants, without payloads."""
    found = fetch_all(
        f"SELECT {CLAIMED_WITHOUT_PAYLOAD} FROM (SELECT *, %s::uuid AS worker_id"
        " FROM unnest(%s::uuid[], %s::int[], %s::bigint[]) AS held (id, attempt, leased_at)) AS v"
        f" JOIN queue_app_task AS t ON {GRANTED} AND t.status = 'executing'",
        [worker_id, *columns_of(attempts, 3)],
    )
    return [ClaimedTask.from_row(row) for row in found]


def in_flight(token_id: uuid.UUID, among: Sequence[uuid.UUID] | None = None) -> int:
    """Return how many tasks the workers of a token hold, of all or of the tasks ``among``."""
    params: list[Any] = [token_id]
    executing = "t.status = 'executing'"
    if among is not None:  # by id, as in sql.reap
        executing = "t.status || '' = 'executing' AND t.id = ANY(%s)"
        params.insert(0, list(among))
    sql = (
        "SELECT count(*) FROM queue_app_task AS t JOIN queue_app_worker AS w ON w.id = t.worker_id"
        f" WHERE {executing} AND w.token_id = %s AND w.status IN ('active', 'draining')"
    )
    return int(fetch_value(sql, params))


# Close a gate for a while: its row holds the time until which no task starts.

_QUEUE: Final = """
UPDATE queue_app_queue SET updated_at = clock_timestamp(),
    throttled_until = GREATEST(throttled_until, clock_timestamp() + make_interval(secs => %s))
WHERE name = %s
"""
# A type or key without limits gets a row that only throttles; the limits of a key's family still apply to it.
_LIMIT: Final = """
INSERT INTO queue_app_limit AS l (scope, name, throttled_until, created_at, updated_at)
VALUES (%s, %s, clock_timestamp() + make_interval(secs => %s), clock_timestamp(), clock_timestamp())
ON CONFLICT (scope, name) DO UPDATE
SET throttled_until = GREATEST(l.throttled_until, EXCLUDED.throttled_until), updated_at = EXCLUDED.updated_at
"""
_FORGET: Final = """
DELETE FROM queue_app_limit WHERE id IN (
    SELECT id FROM queue_app_limit
    WHERE throttled_until < statement_timestamp() - make_interval(secs => %s) AND NOT paused AND max_concurrent IS NULL
        AND rate_count IS NULL AND min_delay_seconds IS NULL
    LIMIT %s FOR UPDATE SKIP LOCKED)
"""


def close(scope: str, name: str, seconds: float) -> None:
    """Close the gate for ``seconds``, or longer if an earlier call closed it for longer."""
    if scope == Scope.QUEUE:
        execute(_QUEUE, [seconds, name])
    else:
        execute(_LIMIT, [scope, name, seconds])


def forget(seconds: float, limit: int) -> int:
    """Delete at most ``limit`` rows that only throttled, until more than ``seconds`` ago; return how many."""
    return execute(_FORGET, [seconds, limit])
