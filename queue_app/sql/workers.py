"""Rows of workers: heartbeat, drain, stop, and the death of a silent worker."""

import uuid
from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from typing import Any, Final

from queue_app.core.failures import fingerprint
from queue_app.core.records import WORKER_DIED, ClaimedTask, HeartbeatAnswer, Returned, Usage, WorkerReport
from queue_app.sql.claim import NEXT_ANSWER, RUN
from queue_app.sql.columns import CLAIMED_WITHOUT_PAYLOAD, INSERT_ATTEMPTS, INSERT_DEAD_LETTERS, RETURNED, returned
from queue_app.sql.database import IS_READ_ONLY, execute, fetch_all, fetch_column, fetch_value
from queue_app.sql.prepared import Row
from queue_app.sql.workflow_advance import TRY_SHARE

_LIVE: Final = "status IN ('active', 'draining')"
_BEAT: Final = "(last_heartbeat_at AT TIME ZONE 'UTC')::text"
#: Expression for the live workers, each as "id interval beat": heartbeat interval (s) and last heartbeat. A server that
#: refuses writes names none: no worker can send a heartbeat, so silence means nothing.
HEARTBEATS: Final = f"""
ARRAY(SELECT concat_ws(' ', id, heartbeat_seconds, {_BEAT}) FROM queue_app_worker WHERE {_LIVE} AND NOT {IS_READ_ONLY})
"""
#: Condition for live workers on a machine, whose name begins their process identities.
NEIGHBOURS: Final = f"{_LIVE} AND starts_with(process_identity, %s)"

_USED: Final = ", ".join(f"{name} = %s" for name in Usage._fields)
_ANSWERED: Final = f", answered_run = {NEXT_ANSWER}"
# The table holds what staff asked for in the last minutes.
_STACKS: Final = """ARRAY(
    SELECT task_id FROM queue_app_taskstack AS asked
    WHERE asked.worker_id = queue_app_worker.id AND answered_at IS NULL)"""
_MARK_DEAD: Final = f"""
UPDATE queue_app_worker SET status = 'dead', stopped_at = clock_timestamp()
WHERE {_LIVE} AND id {{which}} RETURNING id, name, profile
"""
# A worker that sent a heartbeat since it was found to be silent lives.
_MARK_SILENT_DEAD: Final = _MARK_DEAD.format(
    which=f"""IN (
    SELECT id FROM queue_app_worker JOIN unnest(%s::uuid[], %s::text[]) AS silent (id, beat) USING (id)
    WHERE {_BEAT} = silent.beat FOR UPDATE OF queue_app_worker SKIP LOCKED)"""
)
_OFFERED: Final = """
SELECT max(COALESCE(stopped_at, last_heartbeat_at)) FROM queue_app_worker WHERE capabilities @> %(names)s::varchar[]
"""


def heartbeat(worker_id: uuid.UUID, report: WorkerReport, *, names_all: bool = True) -> HeartbeatAnswer:
    """Record that the worker lives; return whether it was declared dead, and what staff ask it for.

    With ``names_all`` the worker has just named all grants that it holds (``sql.claim``).
    """
    sql = (
        "UPDATE queue_app_worker SET last_heartbeat_at = clock_timestamp(), status = %s, tasks_done = %s,"
        f" free_slots = %s, concurrency = COALESCE(%s, concurrency), {_USED}"
        f"{_ANSWERED if names_all else ''}"
        f" WHERE id = %s AND {_LIVE} RETURNING drain_requested_at IS NOT NULL, right(answered_run, 1) = '?', {_STACKS}"
    )
    status = "draining" if report.draining else "active"
    params = [status, report.tasks_done, report.free_slots, report.slots, *report.usage, worker_id]
    found = fetch_all(sql, params)
    if not found:
        return HeartbeatAnswer(alive=False)
    should_drain, is_first, stacks = found[0]
    return HeartbeatAnswer(alive=True, should_drain=should_drain, is_first=names_all and is_first, stacks=tuple(stacks))


def start(worker_id: uuid.UUID) -> None:
    """Record that a worker that registers holds no grant."""
    execute(f"UPDATE queue_app_worker SET answered_run = {RUN} WHERE id = %s", [worker_id])


def request_drain(worker_id: uuid.UUID, by: str) -> bool:
    """Ask an active worker to finish its tasks and stop; return whether there is such a worker."""
    sql = (
        "UPDATE queue_app_worker SET drain_requested_at = clock_timestamp(), drain_requested_by = %s"
        " WHERE id = %s AND status = 'active' AND drain_requested_at IS NULL"
    )
    return execute(sql, [by, worker_id]) == 1


def heartbeats() -> list[str]:
    """Return the live workers with their last heartbeats, as ``HEARTBEATS`` describes them."""
    return list(fetch_value(f"SELECT {HEARTBEATS}"))


def mark_silent_dead(silent: Mapping[uuid.UUID, str]) -> list[Row]:
    """Declare workers dead whose last heartbeat is still the given one; return (id, name, profile) of each."""
    return fetch_all(_MARK_SILENT_DEAD, [list(silent), list(silent.values())]) if silent else []


def mark_dead(worker_id: uuid.UUID) -> list[Row]:
    """Declare one worker dead; return its (id, name, profile) unless it had ended before."""
    return fetch_all(_MARK_DEAD.format(which="= %s"), [worker_id])


def on_this_machine(machine: str, limit: int) -> list[tuple[uuid.UUID, int, str]]:
    """Return (id, pid, process identity) of live workers whose identity begins with ``machine``."""
    sql = f"SELECT id, pid, process_identity FROM queue_app_worker WHERE {NEIGHBOURS} LIMIT %s"
    return [(worker_id, pid, identity) for worker_id, pid, identity in fetch_all(sql, [machine, limit])]


def stop(worker_id: uuid.UUID, tasks_done: int) -> None:
    """Record that the worker has stopped."""
    execute(
        "UPDATE queue_app_worker SET status = 'stopped', stopped_at = clock_timestamp(), tasks_done = %s"
        f" WHERE id = %s AND {_LIVE}",
        [tasks_done, worker_id],
    )


def ended(worker_ids: Sequence[uuid.UUID]) -> set[uuid.UUID]:
    """Return the workers among ``worker_ids`` that have stopped or were declared dead; both are final."""
    sql = "SELECT id FROM queue_app_worker WHERE id = ANY(%s) AND status IN ('stopped', 'dead')"
    return set(fetch_column(sql, [list(worker_ids)]))


def cancel_requests(worker_id: uuid.UUID, tasks: Collection[uuid.UUID] | None = None) -> set[uuid.UUID]:
    """Return the tasks that the worker was asked to cancel, among those that it says it holds, or among all."""
    params: list[Any] = [worker_id]
    which = "status = 'executing'"
    if tasks is not None:  # by id, as in sql.reap
        which = "status || '' = 'executing' AND id = ANY(%s)"
        params.append(list(tasks))
    sql = f"SELECT id FROM queue_app_task WHERE worker_id = %s AND {which} AND cancel_requested_at IS NOT NULL"
    return set(fetch_column(sql, params))


def live() -> list[uuid.UUID]:
    """Return the workers that have not ended."""
    return fetch_column(f"SELECT id FROM queue_app_worker WHERE {_LIVE}")


def offered_until(capabilities: Sequence[str]) -> datetime | None:
    """Return when a worker last offered these capabilities; ``None``: no stored worker did."""
    (found,) = fetch_all(_OFFERED, {"names": list(capabilities)})[0]
    return found if isinstance(found, datetime) else None


# End the attempts of dead workers, and find tasks that are long past their deadline.

# The task has stored a step since its last crash: the next attempt goes on behind it, so this death does not count. The
# step may be of an earlier attempt, which then slept.
_PROGRESSED: Final = f"""EXISTS (SELECT FROM queue_app_stepresult AS step
            WHERE step.task_id = task.id AND step.done_at IS NOT NULL AND step.attempt > (
                SELECT COALESCE(max(crash.attempt), 0) FROM queue_app_taskattempt AS crash
                WHERE crash.task_id = task.id AND crash.exception_class = '{WORKER_DIED}'))"""
# SKIP LOCKED waits for no row, so the order in which this statement locks them cannot cause a deadlock. Locks of
# workflows come before those of rows: a task whose workflow another transaction has alone is left to the next turn.
# Requeue tasks whose worker is dead. They keep their place in the queue, and their attempt number as the fence.
# After its second crash a task is scheduled some seconds apart from the other tasks of the same worker. A task that
# kills its workers then runs alone, and becomes a dead letter without its neighbours.
_ORPHANS: Final = f"""
WITH gone AS MATERIALIZED (
    SELECT task.id, task.workflow_id
    FROM queue_app_task AS task LEFT JOIN queue_app_worker AS worker ON worker.id = task.worker_id
    WHERE {{which}} AND (worker.id IS NULL OR worker.status IN ('dead', 'stopped'))
    LIMIT %(limit)s
), lost AS (
    SELECT task.id, task.attempt, task.started_at, task.worker_id,
        task.cancel_requested_at IS NOT NULL AS cancelled,
        task.crashes + 1 >= %(max_crashes)s AND NOT {_PROGRESSED} AS hopeless,
        task.crashes > 0 AND NOT {_PROGRESSED} AS suspect,
        CASE WHEN {_PROGRESSED} THEN 0 ELSE task.crashes + 1 END AS crashes
    FROM gone JOIN queue_app_task AS task USING (id) LEFT JOIN queue_app_worker AS worker ON worker.id = task.worker_id
    WHERE (gone.workflow_id IS NULL OR {TRY_SHARE.format(id="gone.workflow_id")})
        AND task.status || '' = 'executing' AND (worker.id IS NULL OR worker.status IN ('dead', 'stopped'))
    FOR UPDATE OF task SKIP LOCKED
), fates AS (
    SELECT *,
        CASE WHEN cancelled THEN 'cancelled' WHEN hopeless THEN 'dead_letter'
            WHEN suspect THEN 'scheduled' ELSE 'queued' END AS fate,
        row_number() OVER (PARTITION BY suspect ORDER BY id) AS number
    FROM lost
), done AS (
    UPDATE queue_app_task AS t
    SET status = fates.fate, crashes = fates.crashes, deadline = NULL,
        started_at = CASE WHEN fates.fate IN ('queued', 'scheduled') THEN NULL ELSE t.started_at END,
        worker_id = CASE WHEN fates.fate IN ('queued', 'scheduled') THEN NULL ELSE t.worker_id END,
        queued_at = CASE WHEN fates.fate = 'scheduled' THEN NULL ELSE t.queued_at END,
        run_after = CASE WHEN fates.fate = 'scheduled'
            THEN clock_timestamp() + fates.number * interval '2 seconds' ELSE t.run_after END,
        finished_at = CASE WHEN fates.fate IN ('cancelled', 'dead_letter') THEN clock_timestamp() END
    FROM fates
    WHERE t.id = fates.id AND t.status = 'executing' AND t.attempt = fates.attempt
    RETURNING t.*
), attempts AS (
    {INSERT_ATTEMPTS}
    SELECT lost.id, lost.attempt, lost.worker_id, lost.started_at, clock_timestamp(), %(exception)s, %(message)s, ''
    FROM lost JOIN done USING (id)
    ON CONFLICT (task_id, attempt) DO NOTHING
), dead AS (
    {INSERT_DEAD_LETTERS}
    SELECT gen_random_uuid(), id, task_type, queue, priority, "user", 'crash_loop', attempt, %(exception)s,
        %(message)s, clock_timestamp(), clock_timestamp() + make_interval(secs => %(retention)s), '', %(fingerprint)s
    FROM done WHERE status = 'dead_letter'
    ON CONFLICT DO NOTHING
)
SELECT {RETURNED} FROM done AS t
"""
_MESSAGE: Final = "The worker died, or was out of reach for too long, while it had the task."

_EXECUTING: Final = "task.status = 'executing'"
# The `|| ''` hides the partial index of executing tasks from the planner.
_EXECUTING_AMONG: Final = "task.id = ANY(%(among)s) AND task.status || '' = 'executing'"

#: Condition for executing tasks whose deadline passed longer ago than the parameter (s).
OVERDUE: Final = "t.status = 'executing' AND t.deadline < statement_timestamp() - make_interval(secs => %s)"


def reap_orphans(
    limit: int, *, max_crashes: int, dead_letter_seconds: float, among: Sequence[uuid.UUID] | None = None
) -> list[Returned]:
    """End the attempts of dead workers, of all or of the tasks ``among``; return their tasks."""
    which = _EXECUTING if among is None else _EXECUTING_AMONG
    params = {
        "among": among,
        "limit": limit,
        "max_crashes": max_crashes,
        "retention": dead_letter_seconds,
        "exception": WORKER_DIED,
        "message": _MESSAGE,
        "fingerprint": fingerprint(WORKER_DIED, _MESSAGE),
    }
    return returned(fetch_all(_ORPHANS.replace("{which}", which), params))


def overdue(
    grace_seconds: float, index_now: int, limit: int, among: Sequence[uuid.UUID] | None = None
) -> list[ClaimedTask]:
    """Return executing tasks so far past their deadline that their worker must be stuck, without payloads.

    Looks at all of them, or at the tasks ``among``.

    The index's clock, by which they were leased, must agree (µs): PostgreSQL's clock may have stepped ahead.
    """
    params: list[Any] = [grace_seconds, index_now, grace_seconds, limit]
    overdue = OVERDUE
    if among is not None:
        overdue = "t.id = ANY(%s) AND " + OVERDUE.replace("t.status", "t.status || ''")
        params.insert(0, list(among))
    sql = (
        f"SELECT {CLAIMED_WITHOUT_PAYLOAD} FROM queue_app_task AS t WHERE {overdue}"
        " AND %s - COALESCE(t.leased_at, 0) > 1e6 * (EXTRACT(EPOCH FROM t.deadline - t.started_at) + %s) LIMIT %s"
    )
    return [ClaimedTask.from_row(row) for row in fetch_all(sql, params)]
