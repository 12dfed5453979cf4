"""Statements that advance workflows when their tasks end.

Locks are taken in this order: the workflow, the tasks that end, counters, the tasks that wait; each kind in the order
of its ids. The lock of a workflow is an advisory one. Every transaction that ends tasks of a workflow shares it; a
command on the whole workflow, or a change of its graph, takes it alone. So a command sees no end half advanced. An
attempt that adds tasks behind itself alone shares the lock too, and holds its own row: nothing else reads those edges.
"""

import uuid
from collections.abc import Collection, Iterable, Sequence
from typing import Final

from queue_app.core.records import AttemptKey, Outcome, TaskRef
from queue_app.core.states import Status
from queue_app.sql.columns import FENCE, GRANTED, REF
from queue_app.sql.database import (
    LOOK_UP,
    SHARE_WORKFLOWS,
    WORKFLOW_LOCKS,
    columns_of,
    execute,
    fetch_all,
    fetch_column,
    fetch_locked,
    fetch_prepared,
)
from queue_app.sql.finish import completion

type EdgeRow = tuple[uuid.UUID, uuid.UUID, int, str, bool]  # before, after, shard, condition, whether a counter counts
type Met = tuple[uuid.UUID, int, int]  # after, shard, by how much the counter falls; 0: there is none

#: Condition that shares the lock of a workflow, or is false if another transaction has it alone.
TRY_SHARE: Final = f"pg_try_advisory_xact_lock_shared({WORKFLOW_LOCKS}, hashtext({{id}}::text))"
_SHARE: Final = SHARE_WORKFLOWS.format(flows="unnest(%s::uuid[]) AS flow (id)")
_LOCK: Final = _SHARE.replace("lock_shared", "lock")

# The statements below are planned each time, because one call may open one task, the next a hundred thousand.
_EDGES: Final = """
SELECT edge.before_id, edge.after_id, edge.shard, edge.condition, counter.task_id IS NOT NULL
FROM queue_app_taskdependency AS edge
    LEFT JOIN queue_app_dependencycounter AS counter ON counter.task_id = edge.after_id AND counter.shard = edge.shard
WHERE edge.before_id = ANY(%s) AND NOT edge.met
"""

# Nothing starts now: a pause, a cap (room is made afterwards), or a cancellation, except for compensations.
_IS_HELD: Final = "(flow.paused OR flow.max_concurrent IS NOT NULL)"
_MAY_GO_ON: Final = "(flow.cancel_requested_at IS NULL OR flow.state = 'compensating')"
# Tasks that are opened together share the instant; in a lane, their ids keep the order. The indexes of workflows and of
# blocked tasks are hidden from the planner, which would read all of them.
_OPEN: Final = f"""
UPDATE queue_app_task AS t
SET status = CASE WHEN {_IS_HELD} THEN 'blocked' WHEN t.run_after > now.clock THEN 'scheduled' ELSE 'queued' END,
    queued_at = CASE WHEN NOT {_IS_HELD} AND t.run_after > now.clock THEN NULL ELSE now.clock END
FROM (SELECT clock_timestamp() AS clock) AS now, queue_app_workflow AS flow
WHERE t.id = ANY(ARRAY(SELECT id FROM ready)) AND flow.id = COALESCE(t.workflow_id, t.id)
    AND t.status || '' = 'blocked' AND num_nulls(t.queued_at) = 1 AND t.attempt = 0 AND {_MAY_GO_ON}
RETURNING t.status, {REF}
"""
# Counts the edges in `met (after_id, shard, n)`, where n is 0 without a counter, and opens what then waits for nothing.
# A counter that another transaction changed meanwhile is read again once that one has committed, so of two parents that
# end at once exactly one sees zero. A shard that reaches zero lowers the first counter. Counters are locked in order,
# shards before the first.
_GO_ON: Final = f"""
counts AS (SELECT after_id, shard, sum(n)::int AS n FROM met WHERE n > 0 GROUP BY after_id, shard),
counted AS (
    SELECT counter.task_id, counter.shard, counter.remaining, counts.n
    FROM counts JOIN queue_app_dependencycounter AS counter
        ON counter.task_id = counts.after_id AND counter.shard = counts.shard
    ORDER BY counter.task_id, counter.shard FOR UPDATE OF counter
), roots AS (
    SELECT counter.task_id, counter.shard, counter.remaining, ended.n
    FROM (SELECT task_id, count(*)::int AS n FROM counted WHERE shard > 0 AND remaining <= n GROUP BY task_id) AS ended
        JOIN queue_app_dependencycounter AS counter ON counter.task_id = ended.task_id AND counter.shard = 0
    ORDER BY counter.task_id FOR UPDATE OF counter
), lowered AS (
    SELECT task_id, shard, min(remaining) - sum(n) AS remaining
    FROM (SELECT * FROM counted UNION ALL SELECT * FROM roots) AS counters GROUP BY task_id, shard
), zero AS (SELECT array_agg(task_id) AS ids FROM lowered WHERE shard = 0 AND remaining <= 0
), kept AS (
    UPDATE queue_app_dependencycounter AS counter SET remaining = lowered.remaining FROM lowered
    WHERE counter.task_id = lowered.task_id AND counter.shard = lowered.shard
        AND lowered.task_id <> ALL(COALESCE((SELECT ids FROM zero), '{{}}'))
), gone AS (DELETE FROM queue_app_dependencycounter WHERE task_id = ANY(ARRAY(SELECT unnest(ids) FROM zero))
), ready AS (
    SELECT after_id AS id FROM met WHERE n = 0 UNION SELECT unnest(ids) FROM zero
), opened AS ({_OPEN})
"""
_MET: Final = f"""
WITH met AS (SELECT * FROM unnest(%s::uuid[], %s::int[], %s::int[]) AS met (after_id, shard, n)), {_GO_ON}
SELECT * FROM opened
"""
# The common end of tasks of workflows. Leaves out tasks that were asked to stop, or for whose failure others wait.
# PostgreSQL may plan it while the tables are empty, like the end of other tasks.
_COMPLETE: Final = f"""
WITH v AS (
    SELECT * FROM unnest({FENCE}, %s::timestamptz[], %s::text[])
        AS v (id, attempt, worker_id, leased_at, started_at, result)
), done AS (
    UPDATE queue_app_task AS t
    SET status = 'completed', finished_at = clock_timestamp(), deadline = NULL, started_at = v.started_at
    FROM v
    WHERE {GRANTED} AND t.status || '' = 'executing'
        AND t.cancel_requested_at IS NULL AND NOT EXISTS (
            SELECT FROM queue_app_taskdependency AS edge
            WHERE edge.before_id = v.id AND edge.condition = 'failure' AND NOT edge.met)
    RETURNING t.id, t.attempt, v.leased_at, v.result
), results AS (
    INSERT INTO queue_app_taskresult (task_id, value) SELECT id, result::jsonb FROM done WHERE result IS NOT NULL
    ON CONFLICT (task_id) DO UPDATE SET value = EXCLUDED.value
), met AS (
    SELECT edge.after_id, edge.shard, CASE WHEN counter.task_id IS NULL THEN 0 ELSE 1 END AS n
    FROM done JOIN queue_app_taskdependency AS edge ON edge.before_id = done.id AND NOT edge.met
        LEFT JOIN queue_app_dependencycounter AS counter
            ON counter.task_id = edge.after_id AND counter.shard = edge.shard
), {_GO_ON}
SELECT (SELECT string_agg(concat_ws(' ', id, attempt, leased_at), ',') FROM done), opened.*
FROM (SELECT 1) AS once LEFT JOIN opened ON true
"""
_CLOSE: Final = """
UPDATE queue_app_task AS t SET status = 'blocked', queued_at = COALESCE(t.queued_at, clock_timestamp())
FROM queue_app_workflow AS flow
WHERE t.id = ANY(%s) AND flow.id = t.workflow_id AND {held} AND t.status IN ('queued', 'scheduled')
RETURNING t.id
"""

# Follows the edges that can no longer be met. A task that began needs none of them.
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
), counters AS (DELETE FROM queue_app_dependencycounter AS counter USING added WHERE counter.task_id = added.id),
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
    sql = "SELECT DISTINCT workflow_id FROM queue_app_task WHERE id = ANY(%s) AND workflow_id IS NOT NULL"
    return set(fetch_column(sql, [list(ids)]))


def edges_from(ids: Collection[uuid.UUID]) -> list[EdgeRow]:
    """Return the edges that begin at the tasks and were not counted without their completion."""
    return fetch_all(_EDGES, [list(ids)])


def go_on(met: Collection[Met]) -> list[tuple[Status, TaskRef]]:
    """Count edges that are met; return (status now, task) of the tasks that wait for nothing else."""
    return [(Status(status), TaskRef.from_row(row)) for status, *row in fetch_all(_MET, columns_of(met, 3))]


def complete(
    workflows: Collection[uuid.UUID], outcomes: Sequence[Outcome]
) -> tuple[list[AttemptKey], list[tuple[Status, TaskRef]]]:
    """Complete tasks and open those that wait for them, in one transaction that shares the locks of their workflows.

    Returns the attempts whose tasks are completed now, and (status now, task) of the opened ones. Leaves the
    other tasks alone: those that an attempt no longer holds, that were asked to stop, or whose failure others wait for.
    """
    share = (_SHARE, [list(workflows)])
    found = fetch_prepared(share, LOOK_UP, (_COMPLETE, completion(outcomes)[:-1]))
    ended = [part.split(" ") for part in (found[0][0] or "").split(",") if part]
    opened = [(Status(status), TaskRef.from_row(row)) for _, status, *row in found if status is not None]
    return [(uuid.UUID(task_id), int(attempt), int(stamp)) for task_id, attempt, stamp in ended], opened


def close(ids: Collection[uuid.UUID], *, for_room: bool) -> set[uuid.UUID]:
    """Block the queued and scheduled tasks among ``ids`` whose workflow is paused, or lacks room; return them."""
    return set(fetch_column(_CLOSE.format(held=_IS_HELD if for_room else "flow.paused"), [list(ids)]))


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
    doomed = sorted(fetch_column(_DOOMED, [list(ids)]))
    return [TaskRef.from_row(row) for row in fetch_locked(doomed, _CANCEL, [doomed])]


def drop_added(ids: Collection[uuid.UUID]) -> list[Met]:
    """Delete the blocked tasks that the tasks added; return by how much counters of others must fall."""
    return fetch_all(_DROP, [list(ids)])
