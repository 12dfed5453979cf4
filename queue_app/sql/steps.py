"""Store and read the steps of tasks, fenced by the attempt and its worker."""

import uuid
from typing import Final

from queue_app.core.records import ClaimedTask
from queue_app.core.steps import Step
from queue_app.sql.database import LOOK_UP, fetch_prepared

_COLUMNS: Final = "position, name, kind, value::text, until, signal, done_at IS NOT NULL"
_LOAD: Final = f"SELECT {_COLUMNS} FROM queue_app_stepresult WHERE task_id = %s ORDER BY position"

# The lock makes every transition of the task wait until the step has committed. So an attempt that has lost its task
# stores nothing, and what follows the attempt sees all its steps. The `|| ''` hides the partial index from the planner.
_HELD: Final = """
held AS (
    SELECT id FROM queue_app_task
    WHERE id = %s AND attempt = %s AND worker_id = %s AND status || '' = 'executing' FOR NO KEY UPDATE
)
"""
# A repetition, after an answer that was lost, changes nothing.
_RECORD: Final = f"""
WITH {_HELD}, stored AS (
    INSERT INTO queue_app_stepresult
        (task_id, attempt, position, name, kind, value, until, signal, stored_at, done_at)
    SELECT held.id, %s::int, %s::int, %s::text, %s::text, %s::jsonb, %s::timestamptz, '', clock.now, clock.now
    FROM held, (SELECT clock_timestamp() AS now) AS clock
    ON CONFLICT (task_id, name) DO NOTHING
)
SELECT id FROM held
"""


def load(task_id: uuid.UUID) -> list[Step]:
    """Return the steps of a task, in order."""
    return [Step(*row) for row in fetch_prepared((_LOAD, [task_id]))]


def record(task: ClaimedTask, step: Step) -> bool:
    """Store a step; return false if the attempt no longer holds the task."""
    values = [task.attempt, step.position, step.name, str(step.kind), step.value, step.until]
    return bool(fetch_prepared(LOOK_UP, (_RECORD, [*_fence(task), *values])))


def _fence(task: ClaimedTask) -> list[object]:
    return [task.id, task.attempt, task.worker_id]
