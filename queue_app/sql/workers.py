"""Rows of workers: registration, heartbeat, and what a dead one leaves behind."""

from __future__ import annotations

import uuid
from collections.abc import Sequence

from queue_app.sql.database import execute, fetch_all

_HEARTBEAT = """
UPDATE queue_app_worker SET last_heartbeat_at = clock_timestamp(), status = %s, tasks_done = %s
WHERE id = %s AND status IN ('active', 'draining')
"""

#: Silent for so many of its beats.
SILENT = """
status IN ('active', 'draining')
    AND last_heartbeat_at < statement_timestamp() - make_interval(secs => heartbeat_seconds * %s)
"""
#: On the machine that is the beginning of their identity.
NEIGHBOURS = "status IN ('active', 'draining') AND starts_with(process_identity, %s)"

# A worker that has been silent for its whole budget is declared dead, once; whoever says so must have listened for a
# beat and a half of it, as while PostgreSQL is away nobody is heard.
_MARK_DEAD = f"""
UPDATE queue_app_worker SET status = 'dead', stopped_at = clock_timestamp()
WHERE status IN ('active', 'draining') AND id IN (
    SELECT id FROM queue_app_worker
    WHERE {SILENT} AND heartbeat_seconds * 1.5 < %s
    LIMIT %s FOR UPDATE SKIP LOCKED
)
RETURNING id, profile
"""


def heartbeat(worker_id: uuid.UUID, status: str, tasks_done: int) -> bool:
    """Note that the worker lives; return false when it has been declared dead."""
    return execute(_HEARTBEAT, [status, tasks_done, worker_id]) == 1


def request_drain(worker_id: uuid.UUID, by: str) -> bool:
    """Note that an active worker shall finish what runs and leave; return whether there is one."""
    return (
        execute(
            "UPDATE queue_app_worker SET drain_requested_at = clock_timestamp(), drain_requested_by = %s"
            " WHERE id = %s AND status = 'active' AND drain_requested_at IS NULL",
            [by, worker_id],
        )
        == 1
    )


def is_asked_to_drain(worker_id: uuid.UUID) -> bool:
    """Return whether staff asked the worker to leave."""
    return bool(
        fetch_all(
            "SELECT 1 FROM queue_app_worker WHERE id = %s AND drain_requested_at IS NOT NULL",
            [worker_id],
        )
    )


def mark_silent_dead(missed_heartbeats: int, listened: float, limit: int) -> list[tuple[uuid.UUID, str]]:
    """Declare workers dead that were silent, also to a caller who ``listened`` so long (s); return (id, profile)."""
    return [(row[0], row[1]) for row in fetch_all(_MARK_DEAD, [missed_heartbeats, listened, limit])]


def on_this_machine(machine: str, limit: int) -> list[tuple[uuid.UUID, int, str]]:
    """Return (id, pid, process identity) of live workers whose identity begins with ``machine``."""
    found = fetch_all(
        f"SELECT id, pid, process_identity FROM queue_app_worker WHERE {NEIGHBOURS} LIMIT %s",
        [machine, limit],
    )
    return [(row[0], row[1], row[2]) for row in found]


def stop(worker_id: uuid.UUID, tasks_done: int) -> None:
    """Record that the worker has left."""
    execute(
        "UPDATE queue_app_worker SET status = 'stopped', stopped_at = clock_timestamp(), tasks_done = %s"
        " WHERE id = %s AND status IN ('active', 'draining')",
        [tasks_done, worker_id],
    )


def mark_dead(worker_id: uuid.UUID) -> list[tuple[uuid.UUID, str]]:
    """Declare one worker dead; return its (id, profile) unless it had ended before."""
    found = fetch_all(
        "UPDATE queue_app_worker SET status = 'dead', stopped_at = clock_timestamp()"
        " WHERE id = %s AND status IN ('active', 'draining') RETURNING id, profile",
        [worker_id],
    )
    return [(row[0], row[1]) for row in found]


def ended(worker_ids: Sequence[uuid.UUID]) -> set[uuid.UUID]:
    """Return those of the workers that have stopped or were declared dead; that is final."""
    found = fetch_all(
        "SELECT id FROM queue_app_worker WHERE id = ANY(%s) AND status IN ('stopped', 'dead')", [list(worker_ids)]
    )
    return {row[0] for row in found}


def cancel_requests(worker_id: uuid.UUID) -> set[uuid.UUID]:
    """Return the tasks of the worker that it was asked to stop."""
    found = fetch_all(
        "SELECT id FROM queue_app_task"
        " WHERE worker_id = %s AND status = 'executing' AND cancel_requested_at IS NOT NULL",
        [worker_id],
    )
    return {row[0] for row in found}


def live() -> list[uuid.UUID]:
    """Return the workers that have not ended."""
    found = fetch_all("SELECT id FROM queue_app_worker WHERE status IN ('active', 'draining')")
    return [row[0] for row in found]
