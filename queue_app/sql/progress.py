"""What attempts say while they run; fenced like their outcomes, and not waiting for the disk."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import Any

from queue_app.core.records import ClaimedTask, ProgressReport
from queue_app.sql.database import fetch_all, fetch_last

_RELAXED = "SELECT set_config('synchronous_commit', 'off', true);"
_HELD = """
JOIN queue_app_task AS t ON t.id = v.id AND t.attempt = v.attempt AND t.worker_id = v.worker_id
    AND t.status = 'executing'
"""

_PROGRESS = f"""{_RELAXED}
INSERT INTO queue_app_taskprogress (task_id, attempt, fraction, message, updated_at)
SELECT v.id, v.attempt, v.fraction, v.message, clock_timestamp()
FROM unnest(%(ids)s::uuid[], %(attempts)s::int[], %(workers)s::uuid[], %(fractions)s::float8[], %(messages)s::text[])
    AS v (id, attempt, worker_id, fraction, message)
{_HELD}
ON CONFLICT (task_id) DO UPDATE
SET attempt = EXCLUDED.attempt, fraction = EXCLUDED.fraction, message = EXCLUDED.message,
    updated_at = EXCLUDED.updated_at
RETURNING task_id
"""

_LINES = f"""{_RELAXED}
INSERT INTO queue_app_tasklog (task_id, attempt, lines, dropped, updated_at)
SELECT v.id, v.attempt, v.lines, v.dropped, clock_timestamp()
FROM unnest(%(ids)s::uuid[], %(attempts)s::int[], %(workers)s::uuid[], %(lines)s::text[], %(dropped)s::int[])
    AS v (id, attempt, worker_id, lines, dropped)
{_HELD}
ON CONFLICT (task_id, attempt) DO UPDATE
SET lines = EXCLUDED.lines, dropped = EXCLUDED.dropped, updated_at = EXCLUDED.updated_at
RETURNING task_id
"""

# At most a year from now, as a claim may not grant more either.
_EXTEND = f"""{_RELAXED}
UPDATE queue_app_task AS held
SET deadline = LEAST(held.deadline + make_interval(secs => v.seconds), clock_timestamp() + interval '1 year')
FROM unnest(%(ids)s::uuid[], %(attempts)s::int[], %(workers)s::uuid[], %(seconds)s::float8[])
    AS v (id, attempt, worker_id, seconds)
WHERE held.id = v.id AND held.attempt = v.attempt AND held.worker_id = v.worker_id AND held.status = 'executing'
RETURNING held.id
"""


def store_progress(notes: Sequence[ProgressReport]) -> None:
    """Store how far attempts are, of those that still hold their task."""
    columns = {"fractions": [note.progress for note in notes], "messages": [note.message for note in notes]}
    fetch_last(_PROGRESS, _keys(notes) | columns)


def store_lines(notes: Sequence[ProgressReport]) -> None:
    """Store what attempts logged, of those that still hold their task."""
    columns = {"lines": [note.lines for note in notes], "dropped": [note.dropped for note in notes]}
    fetch_last(_LINES, _keys(notes) | columns)


def extend(notes: Sequence[ProgressReport]) -> None:
    """Move the deadlines of attempts that still hold their task."""
    fetch_last(_EXTEND, _keys(notes) | {"seconds": [note.extend for note in notes]})


def _keys(notes: Sequence[ProgressReport]) -> dict[str, Any]:
    return {
        "ids": [note.task_id for note in notes],
        "attempts": [note.attempt for note in notes],
        "workers": [note.worker_id for note in notes],
    }


_HELD_BY = """
SELECT t.id, t.attempt, t.task_type, t.queue, t.priority, t.capabilities, t."user", t.created_at, t.queued_at,
    t.started_at, EXTRACT(EPOCH FROM t.deadline - t.started_at)::float8,
    COALESCE(t.max_retries, queue.max_retries, policy.max_retries, 3), t.retry_delay, t.failures, '[]', '{}',
    t.concurrency_key, t.weight, t.worker_id
FROM unnest(%s::uuid[], %s::int[]) AS v (id, attempt)
    JOIN queue_app_task AS t ON t.id = v.id AND t.attempt = v.attempt AND t.worker_id = %s AND t.status = 'executing'
    LEFT JOIN queue_app_prioritypolicy AS policy ON policy.priority = t.priority
    LEFT JOIN queue_app_queue AS queue ON queue.name = t.queue
"""


def held_by(worker_id: uuid.UUID, attempts: Sequence[tuple[uuid.UUID, int]]) -> list[ClaimedTask]:
    """Return those of the attempts (id, number) that hold their task for this worker, without parameters."""
    ids, numbers = [task_id for task_id, _ in attempts], [number for _, number in attempts]
    return [ClaimedTask.from_row(row) for row in fetch_all(_HELD_BY, [ids, numbers, worker_id])]


def in_flight(token_id: uuid.UUID) -> int:
    """Return how many tasks the workers of a token hold."""
    found = fetch_all(
        "SELECT count(*) FROM queue_app_task AS t JOIN queue_app_worker AS w ON w.id = t.worker_id"
        " WHERE t.status = 'executing' AND w.token_id = %s AND w.status IN ('active', 'draining')",
        [token_id],
    )
    return int(found[0][0])
