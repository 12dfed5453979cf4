"""Find the existing task of a unique key, and give it new arguments.

Callers that enqueue the same key take turns until their transactions end, by an advisory lock. Such locks share a
table in PostgreSQL that holds some thousands. So a caller with many keys locks their task types instead: every other
caller shares the lock of its type, and this one takes it alone.
"""

import uuid
from collections.abc import Sequence
from datetime import datetime
from typing import Final, NamedTuple

from queue_app.core.records import TaskRef
from queue_app.core.states import Status
from queue_app.sql.admission import READ_COMMITTED, SEED
from queue_app.sql.columns import REF
from queue_app.sql.database import columns_of, fetch_all, fetch_together, lock_rows

#: More keys than these are locked by their task types.
MANY: Final = 200

_SHARE: Final = f"SELECT pg_advisory_xact_lock_shared(hashtextextended(name, {SEED})) FROM unnest(%s::text[]) AS name"
_TAKE: Final = _SHARE.replace("lock_shared", "lock")
# A key has few pending tasks, so its part of the index is short: pending tasks have no `finished_at`. Tasks that ended
# are read only as far back as `within` goes. The `|| ''` hides the index of ended tasks from the planner. A task
# that waits between its steps has begun: its arguments stay.
_STANDING: Final = """
SELECT asked.key, clock_timestamp(), current_setting('transaction_isolation'), t.id, t.status, t.created_at, t."user"
FROM unnest(%s::text[]) AS asked (key) LEFT JOIN LATERAL (
    SELECT * FROM (
        SELECT * FROM (
            SELECT id, CASE WHEN EXISTS (SELECT FROM queue_app_stepresult AS step WHERE step.task_id = one.id)
                THEN 'executing' ELSE status END AS status, created_at, "user"
            FROM queue_app_task AS one WHERE unique_key = asked.key AND finished_at IS NULL
        ) AS pending
        WHERE status = ANY(%s) OR created_at > statement_timestamp() - make_interval(secs => %s)
        UNION ALL
        SELECT id, status, created_at, "user" FROM queue_app_task
        WHERE unique_key = asked.key AND status || '' = 'completed'
            AND finished_at > statement_timestamp() - make_interval(secs => %s)
            AND created_at > statement_timestamp() - make_interval(secs => %s)
    ) AS each ORDER BY status = 'completed', status = 'executing', id LIMIT 1
) AS t ON true
"""


class Existing(NamedTuple):
    """The existing task of a key."""

    id: uuid.UUID
    status: Status
    created_at: datetime
    user: str


class Lookup(NamedTuple):
    """The time, whether the transaction sees what others commit, and {key: its existing task}."""

    clock: datetime | None
    sees_all: bool
    existing: dict[str, Existing]


def lock_and_find(
    task_types: Sequence[str], keys: Sequence[str], states: Sequence[str], within: float | None
) -> Lookup:
    """Wait for the locks of the keys, which last until the transaction ends, and find the existing tasks."""
    types, names = [f"unique:{name}" for name in sorted(task_types)], [f"unique:{key}" for key in sorted(keys)]
    locks = [(_SHARE, [types]), (_TAKE, [names])] if len(keys) <= MANY else [(_TAKE, [types])]
    rows = fetch_together(*locks, (_STANDING, [list(keys), list(states), within, within, within]))
    found = {row[0]: Existing(row[3], Status(row[4]), *row[5:]) for row in rows if row[3] is not None}
    return Lookup(rows[0][1] if rows else None, all(row[2] == READ_COMMITTED for row in rows), found)


def lock_existing(ids: Sequence[uuid.UUID]) -> dict[uuid.UUID, Status]:
    """Lock tasks, so that they neither start nor end meanwhile; return their states now."""
    found = fetch_together(lock_rows(ids), ("SELECT id, status FROM queue_app_task WHERE id = ANY(%s)", [list(ids)]))
    return {task_id: Status(status) for task_id, status in found}


# A claim that already waits for the row would run the old arguments: it reads them as of its own beginning. So a queued
# row is deleted and stored again, under the same id and in the same place. The claim finds the old row gone, and the
# next one takes the new row with the new arguments.
_REWRITE: Final = f"""
WITH gone AS (DELETE FROM queue_app_task WHERE id = ANY(%s) AND status = 'queued' RETURNING *),
t AS (INSERT INTO queue_app_task SELECT * FROM gone RETURNING *)
SELECT {REF} FROM t
"""
_PAYLOADS: Final = """
UPDATE queue_app_taskpayload AS p
SET args = v.args::jsonb, parameters = v.parameters::jsonb, metadata = v.metadata::jsonb
FROM unnest(%s::uuid[], %s::text[], %s::text[], %s::text[]) AS v (id, args, parameters, metadata) WHERE p.task_id = v.id
RETURNING p.task_id
"""
# Returns the tasks that leave the index.
_POSTPONE: Final = """
WITH before AS (SELECT id, queued_at FROM queue_app_task WHERE id = ANY(%s)),
t AS (
    UPDATE queue_app_task AS t SET status = CASE WHEN t.status = 'queued' THEN 'scheduled' ELSE t.status END,
        run_after = CASE WHEN %s::float8 IS NULL THEN v.run_after
            ELSE LEAST(v.run_after, GREATEST(t.created_at + make_interval(secs => %s), clock_timestamp())) END,
        queued_at = NULL
    FROM unnest(%s::uuid[], %s::timestamptz[]) AS v (id, run_after)
    WHERE t.id = v.id AND t.finished_at IS NULL AND t.status <> 'executing'
    RETURNING t.*
)
SELECT t.id, t.task_type, t.queue, t.priority, t.capabilities, before.queued_at, t."user", t.concurrency_key, t.weight
FROM t JOIN before USING (id) WHERE before.queued_at IS NOT NULL
"""


def replace_arguments(payloads: Sequence[tuple[uuid.UUID, str, str, str | None]]) -> list[TaskRef]:
    """Store new (id, args, parameters, metadata) of locked tasks that wait; return the queued ones, stored again."""
    columns = columns_of(payloads, 4)
    fetch_all(_PAYLOADS, columns)
    return [TaskRef.from_row(row) for row in fetch_all(_REWRITE, columns[:1])]


def postpone(times: Sequence[tuple[uuid.UUID, datetime]], max_wait: float | None) -> list[TaskRef]:
    """Start the wait of locked tasks over, up to ``max_wait`` seconds after their enqueue; return those once queued."""
    ids, when = columns_of(times, 2)
    return [TaskRef.from_row(row) for row in fetch_all(_POSTPONE, [ids, max_wait, max_wait, ids, when])]
