"""Grant tasks to a worker, and take them back unstarted."""

import uuid
from collections.abc import Sequence
from typing import Any, Final

from django.db import OperationalError
from psycopg.errors import DeadlockDetected, LockNotAvailable

from queue_app import conf
from queue_app.core.records import ClaimedTask, Returned
from queue_app.core.states import Status
from queue_app.sql.columns import CLAIMED, FENCE, GRANTED, RETURNED, effective, fence, returned
from queue_app.sql.database import (
    BY_KEYS_ONLY,
    GENERATION_LOCK,
    SHARE_WORKFLOWS,
    fetch_all,
    fetch_column,
    fetch_locked,
    fetch_prepared,
    fetch_together,
    once_more_after_deadlock,
)

#: Time for which a claim waits for a locked row (s).
LOCK_SECONDS: Final = 1

# Lock and update are two statements in one implicit transaction and one round trip. The shared lock comes first, so
# that the update's snapshot is younger than the lock: a rebuild that takes the lock exclusively either waits for this
# commit before it reads, or has raised the generation, and this update changes nothing. For the same reason a worker
# that was declared dead is granted nothing (services.repair.reap).
# The reconciler may have taken back the lease of a proposal that was not granted in time. It raised `abandoned_until`
# before that, under the same lock, so a late grant changes nothing. Stamps are compared within one generation only.
# Another transaction may hold a row locked, for example because it cancelled the task and continues. Such a row must
# not delay the rest of the proposal. So the claim waits for LOCK_SECONDS, then skips locked rows. It does not skip them
# at once, because locking rows first costs every claim a write for each row.
# The commit does not wait for the disk: a claim that is lost with the server leaves a queued row, and the worker that
# runs the task takes its grant again (sql.grants).
# PostgreSQL may plan a prepared statement while the tables are empty and keep that plan. BY_KEYS_ONLY forces plans
# that suit full tables. The `|| ''` hides the partial indexes of waiting and executing tasks from the planner.
_LOCK: Final = f"""
SELECT pg_advisory_xact_lock_shared(%s), set_config('synchronous_commit', 'off', true),
    set_config('lock_timeout', '{LOCK_SECONDS}s', true), {BY_KEYS_ONLY}
"""
DEADLINE: Final = f"""now.clock + make_interval(
        secs => LEAST(31536000, {effective("timeout", "timeout_seconds", 600)} * power(%s::float8, t.failures)))"""
GRANT: Final = f"""
UPDATE queue_app_task AS t
SET status = 'executing', attempt = t.attempt + 1, worker_id = %s, leased_at = %s, started_at = now.clock,
    deadline = {DEADLINE}
FROM (SELECT clock_timestamp() AS clock) AS now, queue_app_taskpayload AS payload
WHERE t.id = ANY(%s) AND t.status || '' = 'queued' AND payload.task_id = t.id AND payload.task_id = ANY(%s)
    AND (SELECT number FROM queue_app_indexgeneration WHERE id = 1 AND abandoned_until < %s) = %s
    AND NOT EXISTS (SELECT 1 FROM queue_app_worker WHERE id = %s AND status IN ('dead', 'stopped'))
RETURNING {CLAIMED}
"""
_GRANT_UNLOCKED: Final = GRANT.replace(
    "t.id = ANY(%s)", "t.id = ANY(ARRAY(SELECT id FROM queue_app_task WHERE id = ANY(%s) FOR UPDATE SKIP LOCKED))"
)


def claim(ids: Sequence[uuid.UUID], worker_id: uuid.UUID, generation: int, leased_at: int) -> list[ClaimedTask]:
    """Grant the still queued tasks among ``ids`` to the worker; return them in the order of ``ids``.

    It skips rows that others keep locked. Beside it, only ``turn_over`` grants tasks, and ``grants.grant_again`` what
    PostgreSQL has forgotten.
    """
    lock = (_LOCK, [GENERATION_LOCK])
    factor = conf.get().retry.timeout_factor
    params = [worker_id, leased_at, factor, list(ids), list(ids), leased_at, generation, worker_id]
    try:
        rows = fetch_prepared(lock, (GRANT, params))
    except OperationalError as error:
        if not isinstance(error.__cause__, LockNotAvailable | DeadlockDetected):
            raise
        rows = fetch_prepared(lock, (_GRANT_UNLOCKED, params))
    granted = {row[0]: ClaimedTask.from_row(row) for row in rows}
    return [granted[task_id] for task_id in ids if task_id in granted]


def grantable(ids: Sequence[uuid.UUID], worker_id: uuid.UUID) -> set[uuid.UUID]:
    """Return the queued tasks that a claim of the worker can be granted, unless they are locked."""
    sql = (
        "SELECT t.id FROM queue_app_task AS t JOIN queue_app_taskpayload AS payload ON payload.task_id = t.id"
        " WHERE t.id = ANY(%s) AND t.status || '' = 'queued'"
        " AND NOT EXISTS (SELECT 1 FROM queue_app_worker WHERE id = %s AND status IN ('dead', 'stopped'))"
    )
    return set(fetch_column(sql, [list(ids), worker_id]))


def statuses(ids: Sequence[uuid.UUID]) -> dict[uuid.UUID, Status]:
    """Return the status of each task that exists."""
    found = fetch_all("SELECT id, status FROM queue_app_task WHERE id = ANY(%s)", [list(ids)])
    return {task_id: Status(status) for task_id, status in found}


# If a cancellation was requested meanwhile, the task ends here instead of returning to the queue.
_BACK_IN_PLACE: Final = """
SET status = CASE WHEN t.cancel_requested_at IS NULL THEN 'queued' ELSE 'cancelled' END,
    finished_at = CASE WHEN t.cancel_requested_at IS NULL THEN NULL ELSE clock_timestamp() END,
    started_at = NULL, deadline = NULL, worker_id = NULL
"""
_GIVE_BACK: Final = f"""
UPDATE queue_app_task AS t {_BACK_IN_PLACE}
FROM unnest({FENCE}) AS v (id, attempt, worker_id, leased_at)
WHERE {GRANTED} AND t.status = 'executing'
RETURNING {RETURNED}
"""
_UNACKNOWLEDGED: Final = "t.worker_id = %s AND t.status = 'executing' AND t.id <> ALL(%s)"
_UNACKNOWLEDGED_AMONG: Final = (
    "t.worker_id = %s AND t.status || '' = 'executing' AND t.id <> ALL(%s) AND t.id = ANY(%s)"
)
_SHARE_UNACKNOWLEDGED: Final = SHARE_WORKFLOWS.format(
    flows=f"(SELECT workflow_id FROM queue_app_task AS t WHERE t.workflow_id IS NOT NULL AND {_UNACKNOWLEDGED})"
    " AS flow (id)"
)
_LOCK_UNACKNOWLEDGED: Final = f"SELECT FROM queue_app_task AS t WHERE {_UNACKNOWLEDGED} ORDER BY t.id FOR UPDATE"
_GIVE_BACK_UNACKNOWLEDGED: Final = (
    f"UPDATE queue_app_task AS t {_BACK_IN_PLACE} WHERE {_UNACKNOWLEDGED} RETURNING {RETURNED}"
)


def give_back(tasks: Sequence[ClaimedTask]) -> list[Returned]:
    """Return claimed tasks to their places without counting a failure; return those that were still held."""
    held = sorted(tasks, key=lambda task: task.id)
    params = fence(held)
    return returned(fetch_locked(params[0], _GIVE_BACK, params))


def give_back_unacknowledged(
    worker_id: uuid.UUID, known: Sequence[uuid.UUID], among: Sequence[uuid.UUID] | None = None
) -> list[Returned]:
    """Return the tasks that the worker was granted but does not know of to their places, like ``give_back``.

    Looks at all tasks of the worker, or at those ``among``.
    """
    params: list[Any] = [worker_id, list(known)]
    statements = [_SHARE_UNACKNOWLEDGED, _LOCK_UNACKNOWLEDGED, _GIVE_BACK_UNACKNOWLEDGED]
    if among is not None:
        params.append(list(among))
        statements = [sql.replace(_UNACKNOWLEDGED, _UNACKNOWLEDGED_AMONG) for sql in statements]
    return returned(once_more_after_deadlock(lambda: fetch_together(*((sql, params) for sql in statements))))
