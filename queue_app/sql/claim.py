"""Grant tasks to a worker, and take them back unstarted."""

import uuid
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from django.db import OperationalError
from psycopg.errors import DeadlockDetected, LockNotAvailable

from queue_app import conf
from queue_app.core.records import AttemptKey, ClaimedTask, Lease, Returned
from queue_app.core.states import Status
from queue_app.sql.columns import CLAIMED, FENCE, GRANTED, LANE, RETURNED, effective, fence, returned
from queue_app.sql.database import (
    BATCH_BY_KEYS,
    GENERATION_LOCK,
    SHARE_WORKFLOWS,
    columns_of,
    fetch_all,
    fetch_column,
    fetch_locked,
    fetch_prepared,
    fetch_together,
    once_more_after_deadlock,
)
from queue_app.sql.snapshot import lease_of

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
# runs the task takes its grant again (grant_again).
# PostgreSQL may plan a prepared statement while the tables are empty and keep that plan. BATCH_BY_KEYS forces plans
# that suit full tables. The `|| ''` hides the partial indexes of waiting and executing tasks from the planner.
_LOCK: Final = f"""
SELECT pg_advisory_xact_lock_shared(%s), set_config('synchronous_commit', 'off', true),
    set_config('lock_timeout', '{LOCK_SECONDS}s', true), {BATCH_BY_KEYS}
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


# Grant again what PostgreSQL has forgotten, and tell which workers have said what they hold since it last started.
#
# The commit of a claim does not wait for the disk. If PostgreSQL crashes, or a standby without the last commits is
# promoted, a task that runs may be queued again in the rows. Its lease still stands, so no other worker is proposed the
# task. Every worker names the grants that it holds with each heartbeat, and gets those back.

# The claim is forgotten, and perhaps also that the task had become due. The `|| ''` hides the partial indexes of tasks
# that wait from the planner.
_IS_FORGOTTEN: Final = "t.status || '' IN ('queued', 'scheduled') AND t.attempt = v.attempt - 1"
_QUEUED: Final = """
UPDATE queue_app_task AS t SET status = 'queued', queued_at = clock_timestamp()
FROM unnest(%s::uuid[], %s::int[]) AS v (id, attempt)
WHERE t.id IN (SELECT id FROM queue_app_task WHERE id = ANY(%s) AND status || '' = 'scheduled' FOR UPDATE SKIP LOCKED)
    AND t.id = v.id AND t.status || '' = 'scheduled' AND t.attempt = v.attempt - 1
"""
# The shared lock comes first, as in a claim: what takes it alone (a rebuild, the reconciler) then sees these grants.
# The stamp of the lease is not compared with `abandoned_until`, which newer proposals of other workers may have raised.
# It need not be: the reconciler abandons no lease before every living worker has answered in this run of PostgreSQL.
# Locked rows are left to the next heartbeat, because a heartbeat must not wait for them.
_AGAIN: Final = f"""
WITH v AS (
    SELECT *, %s::uuid AS worker_id FROM unnest(%s::uuid[], %s::int[], %s::bigint[]) AS held (id, attempt, leased_at)
), forgotten AS (
    SELECT t.id FROM queue_app_task AS t
    WHERE t.id IN (SELECT t.id FROM v JOIN queue_app_task AS t ON t.id = v.id AND {_IS_FORGOTTEN})
    FOR UPDATE SKIP LOCKED
), again AS (
    UPDATE queue_app_task AS t
    SET status = 'executing', attempt = v.attempt, worker_id = v.worker_id, started_at = now.clock,
        leased_at = COALESCE(NULLIF(v.leased_at, 0), (EXTRACT(EPOCH FROM now.clock) * 1000000)::bigint),
        deadline = {DEADLINE}
    FROM v, (SELECT clock_timestamp() AS clock) AS now
    WHERE t.id = v.id AND t.id IN (SELECT id FROM forgotten) AND {_IS_FORGOTTEN} AND t.status || '' = 'queued'
        AND EXISTS (SELECT FROM queue_app_worker WHERE id = v.worker_id AND status IN ('active', 'draining'))
    RETURNING v.id, v.attempt, v.leased_at, t.leased_at AS stamp, {LANE}
)
SELECT v.id, v.attempt, v.leased_at, {_IS_FORGOTTEN}, again.id IS NOT NULL, again.id, again.stamp, {{lane}}
FROM v LEFT JOIN again USING (id, attempt, leased_at)
    LEFT JOIN queue_app_task AS t ON t.id = v.id AND ({_IS_FORGOTTEN} OR {GRANTED} AND t.status = 'executing')
WHERE t.id IS NULL OR {_IS_FORGOTTEN}
""".format(lane=LANE.replace("t.", "again."))


class Comparison(NamedTuple):
    """What the rows say about the grants that a worker holds."""

    lost: frozenset[AttemptKey] = frozenset()  # the rows name them no more
    again: frozenset[AttemptKey] = frozenset()  # the rows had forgotten them, and have granted them again
    leases: tuple[Lease, ...] = ()  # of those
    is_complete: bool = True  # false: another transaction has locked a row, so ask again


def grant_again(worker_id: uuid.UUID, held: Sequence[AttemptKey]) -> Comparison:
    """Grant again those of the worker's grants that the rows have forgotten; return also what it has lost.

    A grant is forgotten if its task waits with one attempt less. Only a worker that lives gets it back.
    """
    if not held:
        return Comparison()
    columns = columns_of(held, 3)
    lock = ("SELECT pg_advisory_xact_lock_shared(%s)", [GENERATION_LOCK])
    queued = (_QUEUED, [*columns[:2], columns[0]])
    found = fetch_together(lock, queued, (_AGAIN, [worker_id, *columns, conf.get().retry.timeout_factor]))
    lost, again, leases, is_complete = set[AttemptKey](), set[AttemptKey](), list[Lease](), True
    for task_id, attempt, stamp, is_forgotten, is_granted, *lease in found:
        if is_granted:
            again.add((task_id, attempt, stamp))
            leases.append(lease_of(lease))
        elif is_forgotten:
            is_complete = False
        else:
            lost.add((task_id, attempt, stamp))
    return Comparison(frozenset(lost), frozenset(again), tuple(leases), is_complete)


#: The present run of PostgreSQL. A crash begins another, also one after which its main process continues: it discards
#: the statistics. A promoted standby is another, too.
RUN: Final = """(
    SELECT concat_ws(' ', EXTRACT(EPOCH FROM pg_postmaster_start_time()), EXTRACT(EPOCH FROM stats_reset))
    FROM pg_stat_bgwriter)"""
#: What a heartbeat that names all grants makes of ``answered_run``. Only the second one in a run counts as an answer:
#: the worker may have listed its grants for the first before PostgreSQL crashed.
NEXT_ANSWER: Final = f"CASE rtrim(answered_run, '?') WHEN {RUN} THEN {RUN} ELSE {RUN} || '?' END"
#: Condition for live workers that may hold forgotten grants. Workers of a former version never answer (NULL).
UNANSWERED: Final = f"status IN ('active', 'draining') AND answered_run <> {RUN}"


def unanswered() -> list[tuple[uuid.UUID, float, str]]:
    """Return the live workers that have not named their grants in this run of PostgreSQL.

    Each with its heartbeat interval (s) and its last heartbeat.
    """
    beat = "(last_heartbeat_at AT TIME ZONE 'UTC')::text"
    found = fetch_all(f"SELECT id, heartbeat_seconds, {beat} FROM queue_app_worker WHERE {UNANSWERED}")
    return [(worker_id, interval, beat) for worker_id, interval, beat in found]
