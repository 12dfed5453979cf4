"""Accept what the index proposed: the only statement that grants a task to a worker."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import Final

from django.db import OperationalError
from psycopg.errors import DeadlockDetected, LockNotAvailable

from queue_app import conf
from queue_app.core.records import ANY_LEASE, ClaimedTask, TaskRef
from queue_app.core.states import Status
from queue_app.sql.database import BY_KEYS_ONLY, GENERATION_LOCK, fetch_all, fetch_together

# Two statements, one implicit transaction and one round trip. The shared lock comes first
# and in a statement of its own, so that the update's snapshot is younger than the lock: a
# rebuild that holds the lock alone has either not begun (and will wait for this commit
# before it reads), or has raised the generation, and this update then changes nothing.
# In the same way nothing is granted to a worker that was marked dead (see `services.repair.reap`).
# A row that somebody holds locked (it was cancelled in a transaction that goes on) must not keep
# the others of its proposal waiting, nor be granted once the reconciler may have handed its lease
# on (services.claim.PROPOSAL_SECONDS). So the wait is short, and then such rows are left out.
# They are not left out at once because to lock rows first costs every claim a write for each.
# The commit need not wait for the disk: a claim lost with the server is a queued row.
# A prepared statement may keep the plan that it was given when the tables were empty. So only
# plans that suit full ones are made: each row is looked up by its key. Of indexes that hold
# all that waits, or runs, the planner shall not even know that they would do.
_LOCK: Final = f"""
SELECT pg_advisory_xact_lock_shared(%s), set_config('synchronous_commit', 'off', true),
    set_config('lock_timeout', '1s', true), {BY_KEYS_ONLY}
"""
_OF_QUEUE: Final = "(SELECT {column} FROM queue_app_queue WHERE name = t.queue)"
_OF_POLICY: Final = "(SELECT {column} FROM queue_app_prioritypolicy WHERE priority = t.priority)"
# What queue and policy say is asked for where the task says nothing itself; joins take PostgreSQL longer to plan.
_GRANT: Final = f"""
UPDATE queue_app_task AS t
SET status = 'executing', attempt = t.attempt + 1, worker_id = %s, started_at = now.clock,
    deadline = now.clock + make_interval(secs => LEAST(31536000, COALESCE(
        t.timeout, {_OF_QUEUE.format(column="timeout_seconds")}, {_OF_POLICY.format(column="timeout_seconds")}, 600
    ) * power(%s::float8, t.failures)))
FROM (SELECT clock_timestamp() AS clock) AS now, queue_app_taskpayload AS payload
WHERE t.id = ANY(%s) AND t.status || '' = 'queued' AND payload.task_id = t.id
    AND (SELECT number FROM queue_app_indexgeneration WHERE id = 1) = %s
    AND NOT EXISTS (SELECT 1 FROM queue_app_worker WHERE id = %s AND status IN ('dead', 'stopped'))
RETURNING t.id, t.attempt, t.task_type, t.queue, t.priority, t.capabilities, t."user", t.created_at, t.queued_at,
    t.started_at, EXTRACT(EPOCH FROM t.deadline - t.started_at)::float8,
    COALESCE(t.max_retries, {_OF_QUEUE.format(column="max_retries")}, {_OF_POLICY.format(column="max_retries")}, 3),
    t.retry_delay, t.failures, payload.args, payload.parameters, t.concurrency_key, t.weight, t.worker_id,
    payload.trace
"""
_GRANT_UNLOCKED: Final = _GRANT.replace(
    "t.id = ANY(%s)", "t.id = ANY(ARRAY(SELECT id FROM queue_app_task WHERE id = ANY(%s) FOR UPDATE SKIP LOCKED))"
)


def claim(
    ids: Sequence[uuid.UUID], worker_id: uuid.UUID, generation: int, leased_at: int = ANY_LEASE
) -> list[ClaimedTask]:
    """Grant the still queued tasks among ``ids`` to the worker; return them in the order of ``ids``.

    What others hold locked for long is left out.
    """
    lock = (_LOCK, [GENERATION_LOCK])
    params = [worker_id, conf.get().retry.timeout_factor, list(ids), generation, worker_id]
    try:
        rows = fetch_together(lock, (_GRANT, params))
    except OperationalError as error:
        if not isinstance(error.__cause__, LockNotAvailable | DeadlockDetected):
            raise
        rows = fetch_together(lock, (_GRANT_UNLOCKED, params))
    granted = {row[0]: ClaimedTask.from_row(row, leased_at) for row in rows}
    return [granted[task_id] for task_id in ids if task_id in granted]


def statuses(ids: Sequence[uuid.UUID]) -> dict[uuid.UUID, Status]:
    """Return the status of each task that exists."""
    found = fetch_all("SELECT id, status FROM queue_app_task WHERE id = ANY(%s)", [list(ids)])
    return {task_id: Status(status) for task_id, status in found}


# A task that was asked to stop meanwhile ends here instead of going back to its place.
_TO_ITS_PLACE = """
SET status = CASE WHEN t.cancel_requested_at IS NULL THEN 'queued' ELSE 'cancelled' END,
    finished_at = CASE WHEN t.cancel_requested_at IS NULL THEN NULL ELSE clock_timestamp() END,
    started_at = NULL, deadline = NULL, worker_id = NULL
"""
_RETURNING = (
    'RETURNING t.status, t.id, t.task_type, t.queue, t.priority, t.capabilities, t.queued_at, t."user",'
    " t.concurrency_key, t.weight"
)

_GIVE_BACK = f"""
UPDATE queue_app_task AS t {_TO_ITS_PLACE}
FROM unnest(%s::uuid[], %s::int[], %s::uuid[]) AS held (id, attempt, worker_id)
WHERE t.id = held.id AND t.attempt = held.attempt AND t.worker_id = held.worker_id AND t.status = 'executing'
{_RETURNING}
"""

_GIVE_BACK_STRAYS = f"""
UPDATE queue_app_task AS t {_TO_ITS_PLACE}
WHERE t.worker_id = %s AND t.status = 'executing' AND t.id <> ALL(%s)
{_RETURNING}
"""


def give_back(tasks: Sequence[ClaimedTask]) -> list[tuple[Status, TaskRef]]:
    """Return claimed tasks to their places, no failure counted; return (status now, task) of those still held."""
    params = [[task.id for task in tasks], [task.attempt for task in tasks], [task.worker_id for task in tasks]]
    return [(Status(row[0]), TaskRef.from_row(row[1:])) for row in fetch_all(_GIVE_BACK, params)]


def give_back_unacknowledged(worker_id: uuid.UUID, known: Sequence[uuid.UUID]) -> list[tuple[Status, TaskRef]]:
    """Return what the worker was granted but does not know of; as ``give_back``."""
    found = fetch_all(_GIVE_BACK_STRAYS, [worker_id, list(known)])
    return [(Status(row[0]), TaskRef.from_row(row[1:])) for row in found]
