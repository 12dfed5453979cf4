"""Transitions of dead letters: replay and discard, each in one statement with its record."""

import uuid
from collections.abc import Sequence
from typing import Final

from queue_app.core.records import TaskRef
from queue_app.sql.columns import REF
from queue_app.sql.database import execute, fetch_all, fetch_column

# Every statement locks records before tasks, and each kind in the order of its ids; otherwise two replays of many dead
# letters could deadlock. A second replay waits for the record, finds it replayed, and changes nothing. Tasks that are
# replayed together are queued in the order of their deaths, 8 µs apart: the resolution of a score.
_REPLAY: Final = f"""
WITH letter AS (
    SELECT id, task_id, died_at FROM queue_app_deadletter
    WHERE id = ANY(%(ids)s) AND replayed_at IS NULL AND discarded_at IS NULL
    ORDER BY id FOR UPDATE
), task AS (
    SELECT id FROM queue_app_task
    WHERE id IN (SELECT task_id FROM letter) AND status = 'dead_letter'
    ORDER BY id FOR UPDATE
), placed AS (
    SELECT task.id, letter.id AS letter_id, now.clock, now.clock
        + (row_number() OVER (ORDER BY letter.died_at, letter.id) - 1) * interval '8 microseconds' AS queued_at
    FROM task JOIN letter ON letter.task_id = task.id, (SELECT clock_timestamp() AS clock) AS now
), moved AS (
    UPDATE queue_app_task AS t
    SET status = 'queued', failures = 0, crashes = 0, queued_at = placed.queued_at, run_after = NULL,
        finished_at = NULL, deadline = NULL, cancel_requested_at = NULL
    FROM placed WHERE t.id = placed.id AND t.status = 'dead_letter'
    RETURNING t.*
), record AS (
    UPDATE queue_app_deadletter AS d
    SET replayed_at = placed.clock, replayed_by = %(by)s, operation_id = %(operation)s
    FROM placed JOIN moved ON moved.id = placed.id
    WHERE d.id = placed.letter_id AND d.replayed_at IS NULL AND d.discarded_at IS NULL
    RETURNING d.id, d.task_id
)
SELECT record.id, {REF} FROM record JOIN moved AS t ON t.id = record.task_id ORDER BY t.queued_at
"""

_DISCARD: Final = """
WITH letter AS (
    SELECT id FROM queue_app_deadletter
    WHERE id = ANY(%(ids)s) AND replayed_at IS NULL AND discarded_at IS NULL
    ORDER BY id FOR UPDATE
)
UPDATE queue_app_deadletter AS d
SET discarded_at = clock_timestamp(), discarded_by = %(by)s, discard_reason = %(reason)s
FROM letter WHERE d.id = letter.id AND d.replayed_at IS NULL AND d.discarded_at IS NULL
RETURNING d.id
"""

_OUTCOMES: Final = """
SELECT count(*) FILTER (WHERE t.status IN ('dead_letter', 'failed')),
    count(*) FILTER (WHERE t.id IS NULL OR t.status IN ('completed', 'cancelled', 'expired'))
FROM (
    SELECT task_id FROM queue_app_deadletter WHERE operation_id = %s ORDER BY died_at, id LIMIT %s
) AS first LEFT JOIN queue_app_task AS t ON t.id = first.task_id
"""


def replay(ids: Sequence[uuid.UUID], by: str, operation_id: uuid.UUID | None = None) -> list[tuple[uuid.UUID, TaskRef]]:
    """Queue the tasks of the open dead letters among ``ids``, with a fresh retry budget; record who did it.

    Returns (id of the dead letter, task) of each replayed one, in the order in which they were
    queued. The attempt, which fences, stays.
    """
    found = fetch_all(_REPLAY, {"ids": list(ids), "by": by, "operation": operation_id})
    return [(letter_id, TaskRef.from_row(row)) for letter_id, *row in found]


def discard(ids: Sequence[uuid.UUID], by: str, reason: str) -> list[uuid.UUID]:
    """Close the open dead letters among ``ids``; return their ids."""
    return fetch_column(_DISCARD, {"ids": list(ids), "by": by, "reason": reason})


def tasks_of(ids: Sequence[uuid.UUID]) -> list[uuid.UUID]:
    """Return the tasks of dead letters."""
    return fetch_column("SELECT task_id FROM queue_app_deadletter WHERE id = ANY(%s)", [list(ids)])


def edit_payload(letter_id: uuid.UUID, args: str, parameters: str) -> None:
    """Replace arguments and parameters (JSON texts) of the task; record on the dead letter that they were edited."""
    execute(
        "UPDATE queue_app_taskpayload AS p SET args = %s::jsonb, parameters = %s::jsonb FROM queue_app_deadletter AS d"
        " WHERE d.id = %s AND p.task_id = d.task_id",
        [args, parameters, letter_id],
    )
    execute("UPDATE queue_app_deadletter SET parameters_edited = true WHERE id = %s", [letter_id])


def outcomes(operation_id: uuid.UUID, first: int | None = None) -> tuple[int, int]:
    """Return how many of the (first) tasks that an operation replayed failed again, and how many ended otherwise."""
    failed, ended = fetch_all(_OUTCOMES, [operation_id, first])[0]
    return failed, ended
