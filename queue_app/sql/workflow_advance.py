"""Statements that advance workflows when their tasks end.

Locks are taken in this order: the workflow, the tasks that end, counters, the tasks that wait; each kind in the order
of its ids. The lock of a workflow is an advisory one. Every transaction that ends tasks of a workflow shares it; a
command on the whole workflow, or a change of its graph, takes it alone. So a command sees no end half advanced.
"""

import uuid
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Final

from queue_app.core.records import TaskRef
from queue_app.core.states import Status
from queue_app.sql.claim import fetch_locked, lock_rows
from queue_app.sql.columns import REF
from queue_app.sql.database import execute, fetch_all, fetch_prepared, fetch_together

type EdgeRow = tuple[uuid.UUID, uuid.UUID, int, str, bool]  # before, after, shard, condition, whether a counter counts

#: First half of the keys of the advisory locks; the other half is a hash of the workflow.
_LOCKS: Final = 0x7461736B
#: Condition that shares the lock of a workflow, or is false if another transaction has it alone.
TRY_SHARE: Final = f"pg_try_advisory_xact_lock_shared({_LOCKS}, hashtext({{id}}::text))"
_KEYS: Final = "SELECT DISTINCT hashtext(id::text) AS key FROM unnest(%s::uuid[]) AS flow (id) ORDER BY key"
_SHARE: Final = f"SELECT pg_advisory_xact_lock_shared({_LOCKS}, key) FROM ({_KEYS} OFFSET 0) AS keys"
_LOCK: Final = f"SELECT pg_advisory_xact_lock({_LOCKS}, key) FROM ({_KEYS} OFFSET 0) AS keys"

# The statements below are planned anew each time: one call may open one task, the next a hundred thousand.
_EDGES: Final = """
SELECT edge.before_id, edge.after_id, edge.shard, edge.condition, gate.task_id IS NOT NULL
FROM queue_app_taskdependency AS edge
    LEFT JOIN queue_app_taskgate AS gate ON gate.task_id = edge.after_id AND gate.shard = edge.shard
WHERE edge.before_id = ANY(%s) AND NOT edge.met
"""

# A counter that another transaction changed meanwhile is read again once that one has committed, so of two parents that
# end at once exactly one sees zero.
_COUNT: Final = """
WITH counted AS (
    SELECT * FROM unnest(%s::uuid[], %s::smallint[], %s::int[]) AS counted (task_id, shard, n)
), locked AS (
    SELECT gate.task_id, gate.shard FROM queue_app_taskgate AS gate JOIN counted USING (task_id, shard)
    ORDER BY gate.task_id, gate.shard FOR UPDATE OF gate
)
UPDATE queue_app_taskgate AS gate SET remaining = gate.remaining - counted.n
FROM locked JOIN counted USING (task_id, shard)
WHERE gate.task_id = locked.task_id AND gate.shard = locked.shard
RETURNING gate.task_id, gate.shard, gate.remaining
"""

# What starts nothing now: a pause, a cap (room is made afterwards), or a cancellation of what is not a compensation.
_IS_HELD: Final = "(flow.paused OR flow.max_concurrent IS NOT NULL)"
_MAY_GO_ON: Final = "(flow.cancel_requested_at IS NULL OR flow.state = 'compensating')"
# Tasks that are opened together share the instant; in a lane, their ids keep the order.
_OPEN: Final = f"""
WITH now AS (SELECT clock_timestamp() AS clock)
UPDATE queue_app_task AS t
SET status = CASE WHEN {_IS_HELD} THEN 'blocked' WHEN t.run_after > now.clock THEN 'scheduled' ELSE 'queued' END,
    queued_at = CASE WHEN NOT {_IS_HELD} AND t.run_after > now.clock THEN NULL ELSE now.clock END
FROM now, queue_app_workflow AS flow
WHERE t.id = ANY(%s) AND flow.id = t.workflow_id AND t.status = 'blocked' AND t.queued_at IS NULL
    AND t.attempt = 0 AND {_MAY_GO_ON}
RETURNING t.status, {REF}
"""
_CLOSE: Final = """
UPDATE queue_app_task AS t SET status = 'blocked', queued_at = COALESCE(t.queued_at, clock_timestamp())
FROM queue_app_workflow AS flow
WHERE t.id = ANY(%s) AND flow.id = t.workflow_id AND {held} AND t.status IN ('queued', 'scheduled')
RETURNING t.id
"""

# Follows the edges whose end cannot come any more. A task that began needs none of them.
_WAITS: Final = "task.status = 'blocked' AND task.queued_at IS NULL AND task.attempt = 0"
_DOOMED: Final = f"""
WITH RECURSIVE doomed (id) AS (
    SELECT task.id FROM queue_app_task AS task WHERE task.id = ANY(%s) AND {_WAITS}
    UNION
    SELECT edge.after_id FROM doomed JOIN queue_app_taskdependency AS edge ON edge.before_id = doomed.id
    JOIN queue_app_task AS task ON task.id = edge.after_id
    WHERE edge.condition <> 'continue' AND NOT edge.met AND {_WAITS}
)
SELECT id FROM doomed
"""
_CANCEL: Final = f"""
UPDATE queue_app_task AS t SET status = 'cancelled', finished_at = clock_timestamp()
WHERE t.id = ANY(%s) AND t.status = 'blocked' AND t.queued_at IS NULL AND t.attempt = 0
RETURNING {REF}
"""

# Removes what an attempt added that did not complete. The same statement deletes the rows beside the tasks.
_DROP: Final = """
WITH added AS (
    SELECT node.task_id AS id, task.workflow_id FROM queue_app_workflownode AS node
    JOIN queue_app_task AS task ON task.id = node.task_id AND task.status = 'blocked'
    WHERE node.added_by = ANY(%s)
), edges AS (
    DELETE FROM queue_app_taskdependency AS edge USING added WHERE edge.before_id = added.id
    RETURNING edge.before_id, edge.after_id, edge.shard
), inner_edges AS (
    DELETE FROM queue_app_taskdependency AS edge USING added
    WHERE edge.after_id = added.id AND edge.before_id NOT IN (SELECT id FROM added)
), gates AS (DELETE FROM queue_app_taskgate AS gate USING added WHERE gate.task_id = added.id),
nodes AS (DELETE FROM queue_app_workflownode AS node USING added WHERE node.task_id = added.id),
payloads AS (DELETE FROM queue_app_taskpayload AS payload USING added WHERE payload.task_id = added.id),
tasks AS (DELETE FROM queue_app_task AS task USING added WHERE task.id = added.id),
counted AS (
    UPDATE queue_app_workflow AS flow SET nodes = flow.nodes - gone.n
    FROM (SELECT workflow_id, count(*) AS n FROM added GROUP BY workflow_id) AS gone WHERE flow.id = gone.workflow_id
)
SELECT after_id, shard, count(*)::int FROM edges WHERE after_id NOT IN (SELECT id FROM added) GROUP BY after_id, shard
"""


def share(workflows: Collection[uuid.UUID]) -> None:
    """Share the locks of workflows until the transaction ends."""
    fetch_prepared((_SHARE, [list(workflows)]))


def lock(workflows: Collection[uuid.UUID]) -> None:
    """Take the locks of workflows alone until the transaction ends."""
    fetch_all(_LOCK, [list(workflows)])


def workflows_of(ids: Collection[uuid.UUID]) -> set[uuid.UUID]:
    """Return the workflows that the tasks belong to."""
    found = fetch_all(
        "SELECT DISTINCT workflow_id FROM queue_app_task WHERE id = ANY(%s) AND workflow_id IS NOT NULL", [list(ids)]
    )
    return {row[0] for row in found}


def edges_from(ids: Collection[uuid.UUID]) -> list[EdgeRow]:
    """Return the edges that begin at the tasks and were not counted without their completion."""
    return fetch_all(_EDGES, [list(ids)])


def count(counts: Mapping[tuple[uuid.UUID, int], int]) -> dict[tuple[uuid.UUID, int], int]:
    """Lower counters (task, shard); return what remains of each that exists."""
    in_order = sorted(counts)
    params = [[key[0] for key in in_order], [key[1] for key in in_order], [counts[key] for key in in_order]]
    return {(task_id, shard): remaining for task_id, shard, remaining in fetch_all(_COUNT, params)}


def open_tasks(ids: Collection[uuid.UUID]) -> list[tuple[Status, TaskRef]]:
    """Let tasks go that wait for no other any more; return (status now, task) of each."""
    in_order = sorted(ids)
    found = fetch_together(lock_rows(in_order), (_OPEN, [in_order]))
    return [(Status(status), TaskRef.from_row(row)) for status, *row in found]


def delete_gates(ids: Collection[uuid.UUID]) -> None:
    """Delete the counters of tasks that wait for no other any more."""
    execute("DELETE FROM queue_app_taskgate WHERE task_id = ANY(%s)", [list(ids)])


def close_paused(ids: Collection[uuid.UUID]) -> set[uuid.UUID]:
    """Block the queued and scheduled tasks among ``ids`` whose workflow is paused; return them."""
    return {row[0] for row in fetch_all(_CLOSE.format(held="flow.paused"), [list(ids)])}


def close_held(ids: Collection[uuid.UUID]) -> set[uuid.UUID]:
    """Block the tasks among ``ids`` that must wait for the end of a pause, or for room; return them."""
    return {row[0] for row in fetch_all(_CLOSE.format(held=_IS_HELD), [list(ids)])}


def meet(edges: Iterable[tuple[uuid.UUID, uuid.UUID]]) -> None:
    """Mark edges (after, before) as counted although ``before`` did not complete."""
    pairs = sorted(edges)
    execute(
        "UPDATE queue_app_taskdependency AS edge SET met = true"
        " FROM unnest(%s::uuid[], %s::uuid[]) AS pair (after_id, before_id)"
        " WHERE edge.after_id = pair.after_id AND edge.before_id = pair.before_id",
        [[after for after, _ in pairs], [before for _, before in pairs]],
    )


def cancel_doomed(ids: Collection[uuid.UUID]) -> list[TaskRef]:
    """Cancel blocked tasks and what can then never run; return the cancelled tasks."""
    doomed = sorted(row[0] for row in fetch_all(_DOOMED, [list(ids)]))
    return [TaskRef.from_row(row) for row in fetch_locked(doomed, _CANCEL, [doomed])]


def drop_added(ids: Collection[uuid.UUID]) -> dict[tuple[uuid.UUID, int], int]:
    """Delete the blocked tasks that the tasks added; return {(task, shard): by how much its counter must fall}."""
    found: Sequence[Any] = fetch_all(_DROP, [list(ids)])
    return {(task_id, shard): n for task_id, shard, n in found}
