"""Rows of workers: heartbeat, drain, stop, and the death of a silent worker."""

import uuid
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final

from queue_app.core.records import HeartbeatAnswer, WorkerReport
from queue_app.sql.database import IS_READ_ONLY, execute, fetch_all, fetch_column, fetch_value
from queue_app.sql.grants import NEXT_ANSWER, RUN
from queue_app.sql.prepared import Row

_LIVE: Final = "status IN ('active', 'draining')"
_BEAT: Final = "(last_heartbeat_at AT TIME ZONE 'UTC')::text"
#: Expression for the live workers, each as "id interval beat": heartbeat interval (s) and last heartbeat. A server that
#: refuses writes names none: no worker can send a heartbeat, so silence means nothing.
HEARTBEATS: Final = f"""
ARRAY(SELECT concat_ws(' ', id, heartbeat_seconds, {_BEAT}) FROM queue_app_worker WHERE {_LIVE} AND NOT {IS_READ_ONLY})
"""
#: Condition for live workers on a machine, whose name begins their process identities.
NEIGHBOURS: Final = f"{_LIVE} AND starts_with(process_identity, %s)"

_ANSWERED: Final = f", answered_run = {NEXT_ANSWER}"
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


def heartbeat(worker_id: uuid.UUID, report: WorkerReport, *, names_all: bool = True) -> HeartbeatAnswer:
    """Record that the worker lives; return whether it was declared dead, and whether staff asked it to drain.

    With ``names_all`` the worker has just named all grants that it holds (``sql.grants``).
    """
    sql = (
        "UPDATE queue_app_worker SET last_heartbeat_at = clock_timestamp(), status = %s, tasks_done = %s,"
        " free_slots = %s, concurrency = COALESCE(%s, concurrency), cpu_percent = %s, memory_bytes = %s"
        f"{_ANSWERED if names_all else ''}"
        f" WHERE id = %s AND {_LIVE} RETURNING drain_requested_at IS NOT NULL, right(answered_run, 1) = '?'"
    )
    status = "draining" if report.draining else "active"
    params = [status, report.tasks_done, report.free_slots, report.slots, *report.usage, worker_id]
    found = fetch_all(sql, params)
    if not found:
        return HeartbeatAnswer(alive=False)
    should_drain, is_first = found[0]
    return HeartbeatAnswer(alive=True, should_drain=should_drain, is_first=names_all and is_first)


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
