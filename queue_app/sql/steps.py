"""Store and read the steps of tasks, fenced by the grant; send signals, and let steps take them.

All statements about signals lock the task's row first. So a signal either sees that the task waits and queues it, or
the task sees the signal when it begins to wait.
"""

import json
import uuid
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from queue_app.core.ids import Id, parse_id
from queue_app.core.records import ClaimedTask, TaskRef
from queue_app.core.states import TERMINAL
from queue_app.core.steps import Fields, Step, fields_of
from queue_app.sql.columns import REF
from queue_app.sql.database import LOOK_UP, fetch_prepared, lock_rows

_COLUMNS: Final = "position, name, kind, value::text, until, signal, done_at IS NOT NULL"
_LOAD: Final = f"SELECT {_COLUMNS} FROM queue_app_stepresult WHERE task_id = %s ORDER BY position"

# The lock makes every transition of the task wait until the step has committed. So an attempt that has lost its task
# stores nothing, and the next attempt sees all its steps. The `|| ''` hides the partial index from the planner.
_HELD: Final = """
held AS (
    SELECT id FROM queue_app_task
    WHERE id = %s AND attempt = %s AND worker_id = %s AND COALESCE(leased_at, 0) = %s AND status || '' = 'executing'
    FOR NO KEY UPDATE
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
    fence = [task.id, task.attempt, task.worker_id, task.leased_at]
    values = [task.attempt, step.position, step.name, str(step.kind), step.value, step.until]
    return bool(fetch_prepared(LOOK_UP, (_RECORD, [*fence, *values])))


#: Maximum number of signals that wait to be taken by one task.
MAX_UNTAKEN: Final = 1_000

#: Condition for a task that waits for the signal of a name.
WAITS_FOR: Final = """
t.status = 'blocked' AND EXISTS (
    SELECT FROM queue_app_stepresult AS step WHERE step.task_id = t.id AND step.done_at IS NULL AND step.signal = {name}
)
"""
#: Stores a signal for the task or workflow ``target``, and wakes the tasks that wait for it.
_STORE: Final = f"""
), sent AS (
    INSERT INTO queue_app_signal ({{receiver}}, name, payload, sent_at, sent_by)
    SELECT target.id, %s::text, %s::jsonb, clock_timestamp(), %s::text FROM target
    RETURNING id
), woken AS (
    UPDATE queue_app_task AS t SET status = 'queued', queued_at = clock_timestamp(), run_after = NULL
    FROM target WHERE t.{{key}} = target.id AND {WAITS_FOR.format(name="%s::text")}
    RETURNING t.*
)
SELECT sent.id, t.id IS NOT NULL, {REF} FROM sent LEFT JOIN woken AS t ON true
"""
_SEND: Final = """
WITH target AS (
    SELECT t.id FROM queue_app_task AS t
    WHERE t.id = %s AND t.status IN ('blocked', 'scheduled', 'queued', 'executing') AND %s > (
        SELECT count(*) FROM queue_app_signal AS untaken WHERE untaken.task_id = t.id AND untaken.taken_at IS NULL)
""" + _STORE.format(receiver="task_id", key="id")

# Wakes all tasks of the workflow that wait for the signal: if one of them ends before it takes it, another takes it.
# The others wait again.
_SEND_TO_WORKFLOW: Final = """
WITH target AS (
    SELECT flow.id FROM queue_app_workflow AS flow
    WHERE flow.id = %s AND flow.finished_at IS NULL AND %s > (
        SELECT count(*) FROM queue_app_signal AS untaken
        WHERE untaken.workflow_id = flow.id AND untaken.taken_at IS NULL)
""" + _STORE.format(receiver="workflow_id", key="workflow_id")

# Takes the oldest signal of the task, else of its workflow, unless the step has taken one already. If there is none,
# the step waits, or its time is over.
_TAKE: Final = """
WITH held AS (
    SELECT id, workflow_id FROM queue_app_task
    WHERE id = %s AND attempt = %s AND worker_id = %s AND COALESCE(leased_at, 0) = %s AND status || '' = 'executing'
), taken AS (
    UPDATE queue_app_signal AS s SET taken_at = clock_timestamp()
    FROM held
    WHERE s.id = COALESCE((
        SELECT min(id) FROM queue_app_signal WHERE task_id = held.id AND name = %s::text AND taken_at IS NULL
    ), (
        SELECT id FROM queue_app_signal
        WHERE workflow_id = held.workflow_id AND name = %s::text AND taken_at IS NULL
        ORDER BY id LIMIT 1 FOR UPDATE SKIP LOCKED
    )) AND NOT EXISTS (
        SELECT FROM queue_app_stepresult AS done
        WHERE done.task_id = held.id AND done.name = %s::text AND done.done_at IS NOT NULL
    )
    RETURNING s.id, s.payload
), verdict AS (
    SELECT held.id, clock.now, taken.id IS NOT NULL AS is_taken, taken.payload,
        taken.id IS NULL AND COALESCE(%s::timestamptz <= clock.now, false) AS is_late
    FROM (SELECT clock_timestamp() AS now) AS clock, held LEFT JOIN taken ON true
)
INSERT INTO queue_app_stepresult AS step
    (task_id, attempt, position, name, kind, value, signal, until, schema, stored_at, done_at)
SELECT id, %s::int, %s::int, %s::text, CASE WHEN is_late THEN 'timeout' ELSE 'signal' END, payload, %s::text,
    %s::timestamptz, %s::jsonb, now, CASE WHEN is_taken OR is_late THEN now END
FROM verdict
ON CONFLICT (task_id, name) DO UPDATE
SET kind = EXCLUDED.kind, value = EXCLUDED.value, attempt = EXCLUDED.attempt, schema = EXCLUDED.schema,
    done_at = EXCLUDED.done_at
WHERE step.done_at IS NULL
RETURNING step.position, step.name, step.kind, step.value::text, step.until, step.signal, step.done_at IS NOT NULL
"""


def send(task_id: uuid.UUID, name: str, payload: str | None, by: str) -> tuple[int, TaskRef | None] | None:
    """Store a signal; return its id and the task if it was queued by this, or ``None`` if nothing was stored."""
    found = fetch_prepared(lock_rows([task_id]), (_SEND, [task_id, MAX_UNTAKEN, name, payload, by, name]))
    if not found:
        return None
    signal_id, is_woken, *ref = found[0]
    return signal_id, TaskRef.from_row(ref) if is_woken else None


def send_to_workflow(
    workflow_id: uuid.UUID, name: str, payload: str | None, by: str
) -> tuple[int, list[TaskRef]] | None:
    """Store a signal to a workflow whose lock the caller holds; return its id and the tasks that this has queued."""
    found = fetch_prepared((_SEND_TO_WORKFLOW, [workflow_id, MAX_UNTAKEN, name, payload, by, name]))
    return (found[0][0], [TaskRef.from_row(ref) for _, is_woken, *ref in found if is_woken]) if found else None


def take(task: ClaimedTask, step: Step, schema: str | None) -> Step | None:
    """Let a step take the oldest signal of its name, or wait for one; return ``None`` if nothing was stored."""
    params: list[Any] = [
        task.id, task.attempt, task.worker_id, task.leased_at, step.signal, step.signal, step.name, step.until,
        task.attempt, step.position, step.name, step.signal, step.until, schema,
    ]  # fmt: skip
    found = fetch_prepared(lock_rows([task.id]), (_TAKE, params))
    return Step(*found[0]) if found else None


_WAITS: Final = """
SELECT step.signal, step.until, step.schema::text, t.status FROM queue_app_stepresult AS step
    JOIN queue_app_task AS t ON t.id = step.task_id
WHERE step.done_at IS NULL AND {whose}
"""
_OF_TASK: Final = _WAITS.format(whose="step.task_id = %s")
_OF_WORKFLOW: Final = _WAITS.format(whose="t.workflow_id = %s AND t.status = 'blocked'")


@dataclass(frozen=True, slots=True)
class Awaited:
    """A signal that a task waits for."""

    signal: str
    until: datetime | None
    fields: Fields | None  # of the payload; None: any payload


def awaited(task: Id, *, in_workflow: bool = False) -> list[Awaited]:
    """Return the signals that a task waits for: at most one, as a task waits in one step; or those of a workflow's."""
    found = fetch_prepared((_OF_WORKFLOW if in_workflow else _OF_TASK, [parse_id(task)]))
    return [
        Awaited(signal, until, None if schema is None else fields_of(json.loads(schema)))
        for signal, until, schema, status in found
        if status not in TERMINAL
    ]
