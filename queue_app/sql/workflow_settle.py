"""Statements that decide about a workflow as a whole. The caller has the lock of the workflow alone."""

import uuid
from collections.abc import Collection, Iterator, Mapping
from typing import Final

from queue_app.core.records import AttemptKey, TaskRef
from queue_app.core.states import Status
from queue_app.sql.columns import REF
from queue_app.sql.database import LOOK_UP, execute, fetch_all, fetch_column, fetch_locked, fetch_prepared, fetch_value

_PENDING: Final = "('blocked', 'executing', 'queued', 'scheduled')"
_OF: Final = "t.workflow_id = flow.id"
_IDLE: Final = f"NOT EXISTS (SELECT FROM queue_app_task AS t WHERE {_OF} AND t.status IN {_PENDING})"
_FAILING: Final = "t.status IN ('dead_letter', 'expired', 'failed')"
_OPEN_LETTER: Final = """EXISTS (SELECT FROM queue_app_deadletter AS letter
    WHERE letter.task_id = t.id AND letter.replayed_at IS NULL AND letter.discarded_at IS NULL)"""
_UNDOES: Final = """EXISTS (SELECT FROM queue_app_workflownode AS node
    WHERE node.task_id = t.id AND node.compensates IS NOT NULL)"""
_EDGE: Final = "SELECT FROM queue_app_taskdependency AS edge WHERE edge.before_id = t.id"
_EXCUSED: Final = f"""(EXISTS ({_EDGE}) OR flow.on_failure = 'continue')
    AND NOT EXISTS ({_EDGE} AND edge.condition IN ('hold', 'cancel'))
    AND NOT {_UNDOES}"""

# A task without success holds the workflow if another waits for it; a dead letter also if none does, until staff retry
# or skip it, or cancel the workflow. The workflow's policy may excuse it. A compensation holds until a person has
# decided about it.
HOLDING: Final = f"""{_OF} AND {_FAILING} AND (
    EXISTS (SELECT FROM queue_app_taskdependency AS edge JOIN queue_app_task AS after ON after.id = edge.after_id
        WHERE edge.before_id = t.id AND edge.condition = 'hold' AND NOT edge.met AND after.status = 'blocked')
    OR flow.on_failure = 'hold' AND flow.cancel_requested_at IS NULL AND NOT ({_EXCUSED}) AND {_OPEN_LETTER}
    OR EXISTS (SELECT FROM queue_app_workflownode AS node
        WHERE node.task_id = t.id AND node.compensates IS NOT NULL AND node.closed = ''))"""
_HELD: Final = f"EXISTS (SELECT FROM queue_app_task AS t WHERE {HOLDING})"
_VERDICT: Final = f"""
SELECT {_IDLE}, {_HELD},
    EXISTS (SELECT FROM queue_app_task AS t WHERE {_OF} AND {_FAILING} AND NOT ({_EXCUSED})),
    EXISTS (SELECT FROM queue_app_task AS t
        WHERE {_OF} AND t.status = 'cancelled' AND t.cancel_requested_at IS NOT NULL)
FROM queue_app_workflow AS flow WHERE flow.id = %s
"""
_WANTED: Final = f"""
SELECT id FROM queue_app_workflow AS flow
WHERE id = ANY(%s) AND finished_at IS NULL
    AND (max_concurrent IS NOT NULL OR held_at IS NOT NULL OR cancel_requested_at IS NOT NULL OR {_IDLE})
"""
# The plain end: all completed, or were skipped because what they handle did not happen.
_COMPLETE: Final = f"""
UPDATE queue_app_workflow AS flow SET state = 'completed', finished_at = clock_timestamp(), held_at = NULL
WHERE id = ANY(%s) AND finished_at IS NULL AND state = 'running' AND cancel_requested_at IS NULL AND NOT EXISTS (
    SELECT FROM queue_app_task AS t WHERE {_OF} AND t.status <> 'completed')
RETURNING id
"""
# Tasks keep the places that they had.
_RELEASE: Final = f"""
WITH now AS (SELECT clock_timestamp() AS clock)
UPDATE queue_app_task AS t
SET status = CASE WHEN t.run_after > now.clock THEN 'scheduled' ELSE 'queued' END,
    queued_at = CASE WHEN t.run_after > now.clock THEN NULL ELSE t.queued_at END
FROM now WHERE t.status = 'blocked' AND t.id = ANY(ARRAY(
    SELECT id FROM queue_app_task
    WHERE workflow_id = %s AND status = 'blocked' AND queued_at IS NOT NULL ORDER BY queued_at LIMIT %s
))
RETURNING t.status, {REF}
"""
_PAUSE: Final = f"""
UPDATE queue_app_task AS t SET status = 'blocked', queued_at = COALESCE(t.queued_at, clock_timestamp())
WHERE t.id = ANY(%s) AND t.status IN ('queued', 'scheduled')
RETURNING {REF}
"""
_UNDOABLE: Final = """
SELECT t.id, node.compensation FROM queue_app_workflownode AS node JOIN queue_app_task AS t ON t.id = node.task_id
WHERE t.workflow_id = %s AND t.status = 'completed' AND node.compensation IS NOT NULL
    AND t.id <> ALL(ARRAY(
        SELECT undo.compensates
        FROM queue_app_workflownode AS undo JOIN queue_app_task AS other ON other.id = undo.task_id
        WHERE other.workflow_id = t.workflow_id AND undo.compensates IS NOT NULL))
ORDER BY t.finished_at DESC, t.id DESC
"""
# Completed tasks whose compensation did not complete, and what a person decided about it.
_NOT_UNDONE: Final = """
SELECT undone.id, COALESCE(NULLIF(own.name, ''), substring(undone.task_type FROM '[^.]*$')), t.status,
    node.closed, node.closed_reason
FROM queue_app_task AS t JOIN queue_app_workflownode AS node ON node.task_id = t.id AND node.compensates IS NOT NULL
    JOIN queue_app_task AS undone ON undone.id = node.compensates
    LEFT JOIN queue_app_workflownode AS own ON own.task_id = undone.id
WHERE t.workflow_id = %s AND t.status <> 'completed' AND node.closed <> 'done' ORDER BY t.id
"""
_CLOSE: Final = """
UPDATE queue_app_workflownode AS node SET closed = %s, closed_reason = %s
WHERE node.task_id = ANY(%s) AND node.compensates IS NOT NULL
    AND node.closed <> %s AND (node.closed = '' OR %s IN ('', 'done'))
RETURNING node.task_id
"""
_IS_UNDONE: Final = """EXISTS (
    SELECT FROM queue_app_task AS t JOIN queue_app_workflownode AS node ON node.task_id = t.id
    WHERE t.workflow_id = flow.id AND node.compensates IS NOT NULL)"""
_REOPEN: Final = f"""
UPDATE queue_app_workflow AS flow SET finished_at = NULL, cancel_requested_at = NULL,
    state = CASE WHEN {_IS_UNDONE} THEN 'compensating' ELSE 'running' END
WHERE id = ANY(%s) AND state IN ('completed', 'failed', 'cancelled', 'compensated')
"""
# Edges that the present state of `before` satisfies, or what a person decided about it.
SATISFIED: Final = """(edge.met OR before.status = 'completed' AND edge.condition <> 'failure' OR EXISTS (
        SELECT FROM queue_app_workflownode AS decided WHERE decided.task_id = before.id AND decided.closed <> ''))"""
_UNREADY: Final = f"""
SELECT t.id FROM queue_app_task AS t WHERE t.id = ANY(%s) AND t.attempt = 0 AND EXISTS (
    SELECT FROM queue_app_taskdependency AS edge JOIN queue_app_task AS before ON before.id = edge.before_id
    WHERE edge.after_id = t.id AND NOT {SATISFIED})
"""
_BLOCK: Final = """
UPDATE queue_app_task AS t SET status = 'blocked', queued_at = NULL WHERE t.id = ANY(%s) AND t.status = 'queued'
"""
_READY: Final = f"""t.status = 'blocked' AND t.queued_at IS NULL AND t.attempt = 0
    AND EXISTS (SELECT FROM queue_app_workflow AS flow WHERE flow.id = t.workflow_id
        AND (flow.cancel_requested_at IS NULL OR flow.state = 'compensating'))
    AND NOT EXISTS (
        SELECT FROM queue_app_taskdependency AS edge JOIN queue_app_task AS before ON before.id = edge.before_id
        WHERE edge.after_id = t.id AND NOT {SATISFIED})"""
_FORGOTTEN: Final = f"""
SELECT t.id, t.workflow_id, {_READY}
FROM (SELECT * FROM queue_app_task WHERE status = 'blocked' AND id > %s ORDER BY id LIMIT %s) AS t ORDER BY t.id
"""
_PAGE_OF_OPEN: Final = f"""
SELECT flow.id, (max_concurrent IS NOT NULL OR held_at IS NOT NULL OR cancel_requested_at IS NOT NULL OR {_IDLE}
    OR EXISTS (SELECT FROM queue_app_task AS t WHERE {_OF} AND {_FAILING}))
FROM queue_app_workflow AS flow WHERE finished_at IS NULL AND flow.id > %s ORDER BY flow.id LIMIT %s
"""
# What a workflow did before it was undone.
_UNDONE_TASKS: Final = f"""
SELECT t.id FROM queue_app_task AS t
WHERE t.id = ANY(%s) AND NOT {_UNDOES} AND t.workflow_id IN (
    SELECT id FROM queue_app_workflow AS flow
    WHERE id = ANY(%s) AND state IN ('compensating', 'compensated', 'failed') AND {_IS_UNDONE})
"""
# A task that waits for a failure of one that completed.
_SKIPPED: Final = """EXISTS (
    SELECT FROM queue_app_taskdependency AS edge JOIN queue_app_task AS before ON before.id = edge.before_id
    WHERE edge.after_id = t.id AND edge.condition = 'failure' AND before.status = 'completed' AND NOT edge.met)"""


def wanted(workflows: Collection[uuid.UUID]) -> list[uuid.UUID]:
    """Return the workflows among these that may have ended, are held, or have a cap."""
    return [row[0] for row in fetch_prepared(LOOK_UP, (_WANTED, [list(workflows)]))]


def complete(workflows: Collection[uuid.UUID]) -> set[uuid.UUID]:
    """End the workflows among these whose tasks have all completed; return them."""
    return {row[0] for row in fetch_prepared(LOOK_UP, (_COMPLETE, [list(workflows)]))}


def verdict(workflow_id: uuid.UUID) -> tuple[bool, bool, bool, bool]:
    """Return whether no task is pending, a failed task holds the workflow, one failed, and one was cancelled."""
    idle, held, failed, cancelled = fetch_all(_VERDICT, [workflow_id])[0]
    return idle, held, failed, cancelled


def running(workflow_id: uuid.UUID) -> int:
    """Return how many tasks of a workflow are scheduled, queued or executing."""
    sql = (
        "SELECT count(*) FROM queue_app_task WHERE workflow_id = %s AND status IN ('executing', 'queued', 'scheduled')"
    )
    return int(fetch_value(sql, [workflow_id]))


def release(workflow_id: uuid.UUID, limit: int) -> list[tuple[Status, TaskRef]]:
    """Let at most ``limit`` tasks go that a pause or the cap held back, in order; return (status now, task) of each."""
    return [(Status(status), TaskRef.from_row(row)) for status, *row in fetch_all(_RELEASE, [workflow_id, limit])]


def ids_in(workflow_id: uuid.UUID, statuses: Collection[Status], limit: int) -> list[uuid.UUID]:
    """Return at most ``limit`` tasks of a workflow in these states."""
    sql = "SELECT id FROM queue_app_task WHERE workflow_id = %s AND status = ANY(%s) LIMIT %s"
    return fetch_column(sql, [workflow_id, [str(status) for status in statuses], limit])


def hold_back(ids: Collection[uuid.UUID]) -> list[TaskRef]:
    """Block queued and scheduled tasks, which keep their places; return them."""
    in_order = sorted(ids)
    return [TaskRef.from_row(row) for row in fetch_locked(in_order, _PAUSE, [in_order])]


def undoable(workflow_id: uuid.UUID) -> list[tuple[uuid.UUID, str]]:
    """Return (task, its compensation) of the completed tasks that are to be undone, the last to complete first."""
    return fetch_all(_UNDOABLE, [workflow_id])


def to_undo(workflow_id: uuid.UUID) -> list[tuple[str, int]]:
    """Return (task type, number) of the completed tasks that a cancel of the workflow undoes, the most first."""
    sql = (
        f"SELECT t.task_type, count(*) FROM ({_UNDOABLE}) AS undoable JOIN queue_app_task AS t USING (id)"
        " GROUP BY t.task_type ORDER BY count(*) DESC, t.task_type"
    )
    return fetch_all(sql, [workflow_id])


def reopen(workflows: Collection[uuid.UUID]) -> None:
    """Let ended workflows run again, because tasks of theirs do."""
    execute(_REOPEN, [list(workflows)])


def is_undone(workflow_id: uuid.UUID) -> bool:
    """Return whether a workflow has compensations."""
    return bool(fetch_value(f"SELECT {_IS_UNDONE} FROM queue_app_workflow AS flow WHERE id = %s", [workflow_id]))


def compensations_among(ids: Collection[uuid.UUID]) -> dict[uuid.UUID, str]:
    """Return {task: ``Closed`` or ""} of the compensations among tasks."""
    sql = "SELECT task_id, closed FROM queue_app_workflownode WHERE task_id = ANY(%s) AND compensates IS NOT NULL"
    return dict(fetch_all(sql, [list(ids)]))


def undone_among(ids: Collection[uuid.UUID], workflows: Collection[uuid.UUID]) -> set[uuid.UUID]:
    """Return the tasks of these workflows that must not run again, because what had completed was undone."""
    return set(fetch_column(_UNDONE_TASKS, [list(ids), list(workflows)]))


def not_undone(workflow_id: uuid.UUID) -> list[tuple[uuid.UUID, str, Status, str, str]]:
    """Return the completed tasks whose compensation has not completed: (id, name, its state, ``Closed`` or "", why)."""
    found = fetch_all(_NOT_UNDONE, [workflow_id])
    return [(task_id, name, Status(status), closed, why) for task_id, name, status, closed, why in found]


def compensations_of(workflow_id: uuid.UUID) -> list[uuid.UUID]:
    """Return the compensations of a workflow that have not completed."""
    sql = (
        "SELECT t.id FROM queue_app_task AS t JOIN queue_app_workflownode AS node ON node.task_id = t.id"
        " WHERE t.workflow_id = %s AND node.compensates IS NOT NULL AND t.status <> 'completed' ORDER BY t.id"
    )
    return fetch_column(sql, [workflow_id])


def close(ids: Collection[uuid.UUID], how: str, reason: str) -> list[uuid.UUID]:
    """Record what a person decided about compensations; return those about which nothing else was decided before.

    A task that was undone by hand later is no gap any more; "" takes a decision back.
    """
    return fetch_column(_CLOSE, [how, reason, list(ids), how, how])


def block_unready(ids: Collection[uuid.UUID]) -> set[uuid.UUID]:
    """Block the queued tasks among ``ids`` that still wait for others; return them."""
    unready = fetch_column(_UNREADY, [list(ids)])
    if unready:
        execute(_BLOCK, [unready])
    return set(unready)


def page_of_blocked(after: uuid.UUID, limit: int) -> list[tuple[uuid.UUID, uuid.UUID | None, bool]]:
    """Return the next blocked tasks, as (id, workflow, whether it waits for nothing and is blocked anyway)."""
    return fetch_all(_FORGOTTEN, [after, limit])


def still_ready(ids: Collection[uuid.UUID]) -> list[uuid.UUID]:
    """Return the blocked tasks among ``ids`` that wait for nothing."""
    return fetch_column(f"SELECT t.id FROM queue_app_task AS t WHERE t.id = ANY(%s) AND {_READY}", [list(ids)])


def page_of_open(after: uuid.UUID, limit: int) -> list[tuple[uuid.UUID, bool]]:
    """Return the next workflows that have not ended, as (id, whether there may be something to decide)."""
    return fetch_all(_PAGE_OF_OPEN, [after, limit])


def without_skipped(ids: Collection[uuid.UUID]) -> list[uuid.UUID]:
    """Return the tasks among ``ids`` that can still run: that wait for no failure of a completed task."""
    sql = f"SELECT t.id FROM queue_app_task AS t WHERE t.id = ANY(%s) AND NOT {_SKIPPED}"
    return fetch_column(sql, [list(ids)])


def waiting_in_other_bands(workflow_id: uuid.UUID, priority: int, limit: int) -> Iterator[list[uuid.UUID]]:
    """Yield the waiting tasks of a workflow that are in another band, in batches."""
    sql = (
        "SELECT id FROM queue_app_task WHERE workflow_id = %s AND status IN ('blocked', 'queued', 'scheduled')"
        " AND priority <> %s ORDER BY id"
    )
    ids = fetch_column(sql, [workflow_id, priority])
    for start in range(0, len(ids), limit):
        yield ids[start : start + limit]


def is_held(grant: AttemptKey) -> bool:
    """Return whether an attempt still holds its task; it then does until the transaction ends."""
    sql = (
        "SELECT FROM queue_app_task WHERE id = %s AND attempt = %s AND COALESCE(leased_at, 0) = %s"
        " AND status = 'executing' FOR UPDATE"
    )
    return bool(fetch_all(sql, grant))


def statuses_in(workflow_id: uuid.UUID, ids: Collection[uuid.UUID]) -> dict[uuid.UUID, Status]:
    """Return the status of each of the tasks that is in the workflow."""
    sql = "SELECT id, status FROM queue_app_task WHERE id = ANY(%s) AND workflow_id = %s"
    return {task_id: Status(status) for task_id, status in fetch_all(sql, [list(ids), workflow_id])}


def last_shards(ids: Collection[uuid.UUID]) -> dict[uuid.UUID, int]:
    """Return the highest number of a counter of each task that has some."""
    sql = "SELECT task_id, max(shard) FROM queue_app_dependencycounter WHERE task_id = ANY(%s) GROUP BY task_id"
    return dict(fetch_all(sql, [list(ids)]))


def raise_counters(more: Mapping[uuid.UUID, int]) -> None:
    """Raise the first counters of tasks, in the order in which ends of tasks lock them."""
    execute(
        "UPDATE queue_app_dependencycounter AS counter SET remaining = counter.remaining + locked.n FROM ("
        "SELECT counter.task_id, more.n FROM unnest(%s::uuid[], %s::int[]) AS more (task_id, n)"
        " JOIN queue_app_dependencycounter AS counter ON counter.task_id = more.task_id AND counter.shard = 0"
        " ORDER BY counter.task_id FOR UPDATE OF counter"
        ") AS locked WHERE counter.task_id = locked.task_id AND counter.shard = 0",
        [list(more), list(more.values())],
    )
