"""Store the progress reports of attempts, fenced as their outcomes are. The commits do not wait for the disk."""

import uuid
from collections.abc import Sequence
from typing import Any, Final

from queue_app.core.records import AttemptKey, ClaimedTask, ProgressReport
from queue_app.sql.columns import CLAIMED_WITHOUT_PAYLOAD, FENCE, GRANTED
from queue_app.sql.database import columns_of, fetch_all, fetch_together, fetch_value, lock_rows
from queue_app.sql.prepared import Statement

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
