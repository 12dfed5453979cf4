"""Lanes: in which addresses and bands tasks wait, and from where on a claim looks for the first of them.

A lane says too much rather than too little: it may have no task any more, or its first task may come later. A claim
then corrects it. Only a task that is missing here would wait, until the reconciler finds it.
"""

import uuid
from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import Any, Final

from queue_app.core.limits import BAND_WIDTH, parse_lane, queued_at_of
from queue_app.core.records import Entry
from queue_app.rows import gates, wake
from queue_app.rows.tables import ADDRESS, HASH, IS_IN_FORCE, ask
from queue_app.sql import snapshot
from queue_app.sql.database import BY_KEYS_ONLY, GENERATION_LOCK, columns_of, execute, fetch_together
from queue_app.sql.prepared import Statement

#: The age (s) of the tasks whose lanes are named anew while claims have left Redis.
RECENT_SECONDS: Final = 10.0
#: More than the precision of a score, which has steps of 8 µs.
PRECISION: Final = timedelta(microseconds=20)

_KEYS: Final = ("hash", "band", *ADDRESS.split(", "))
_UPSERT: Final = f"""
INSERT INTO queue_app_rows_lane AS lane (hash, band, {ADDRESS}, head, head_id)
{{source}}
ON CONFLICT (hash, band, {ADDRESS}) DO UPDATE SET head = EXCLUDED.head, head_id = EXCLUDED.head_id
WHERE (EXCLUDED.head, EXCLUDED.head_id) < (lane.head, lane.head_id)
RETURNING 1
"""
#: A push goes before or after a claim, so a lane that a claim has found empty is named again by the push behind it.
_BESIDE_CLAIMS: Final = ("SELECT pg_advisory_xact_lock_shared(%s)", [GENERATION_LOCK])
# In the order of the key, so that two of these statements do not deadlock. Its answer is the setting taskqueue.pushed.
_PUSH: Final = f"""
WITH pushed AS (
    SELECT {HASH} AS hash, * FROM (
        SELECT band, queue, task_type, string_to_array(needs, ',')::varchar[] AS capabilities, "user", concurrency_key,
            weight, head
        FROM unnest(%s::smallint[], %s::text[], %s::text[], %s::text[], %s::text[], %s::text[], %s::smallint[],
            %s::timestamptz[]) AS v (band, queue, task_type, needs, "user", concurrency_key, weight, head)
    ) AS v
), changed AS ({
    _UPSERT.format(
        source=f'''
SELECT hash, band, {ADDRESS}, head, '00000000-0000-0000-0000-000000000000'::uuid FROM pushed
ORDER BY 1, 2, queue, task_type, "user", concurrency_key, weight, capabilities'''
    )
})
SELECT set_config('taskqueue.pushed', (SELECT array_agg(DISTINCT hash) FROM pushed)::text, true),
    set_config('taskqueue.changed', (SELECT count(*) FROM changed)::text, true)
"""
_CALL: Final = f"""
SELECT current_setting('taskqueue.changed')::int,
    {IS_IN_FORCE},
    queue_app_wake_1(current_setting('taskqueue.pushed')::bigint[], NULL)
"""
#: The lanes of the tasks that were queued lately.
_NAME_RECENT: Final = _UPSERT.format(
    source=f"""
SELECT hash, band, {ADDRESS}, min(queued_at) - interval '20 microseconds', '00000000-0000-0000-0000-000000000000'::uuid
FROM (
    SELECT {HASH} AS hash, priority AS band, {ADDRESS}, queued_at FROM queue_app_task
    WHERE status = 'queued' AND queued_at > statement_timestamp() - make_interval(secs => %s)
) AS recent GROUP BY 1, 2, queue, task_type, "user", concurrency_key, weight, capabilities
ORDER BY 1, 2, queue, task_type, "user", concurrency_key, weight, capabilities"""
)
#: The first task of each address and band, by as many look-ups in the index as there are of them.
_FIRST: Final = f"""
WITH RECURSIVE first AS (
    (SELECT {HASH} AS hash, priority AS band, {ADDRESS}, queued_at, id FROM queue_app_task WHERE status = 'queued'
     ORDER BY {HASH}, priority, queued_at, id LIMIT 1)
    UNION ALL
    SELECT next.* FROM first, LATERAL (
        SELECT {HASH} AS hash, priority AS band, {ADDRESS}, queued_at, id FROM queue_app_task
        WHERE status = 'queued' AND ({HASH}, priority) > (first.hash, first.band)
        ORDER BY {HASH}, priority, queued_at, id LIMIT 1
    ) AS next
)
"""
_FILL: Final = _UPSERT.format(source=f"{_FIRST} SELECT hash, band, {ADDRESS}, queued_at, id FROM first")
_MISPLACED: Final = f"""
{_FIRST}
SELECT first.id FROM first LEFT JOIN queue_app_rows_lane AS lane USING ({", ".join(_KEYS)})
WHERE lane.head IS NULL OR (lane.head, lane.head_id) > (first.queued_at, first.id)
"""
_BY_INDEX: Final = (f"SELECT {BY_KEYS_ONLY}, set_config('enable_bitmapscan', 'off', true)", ())
_READY: Final = """
INSERT INTO queue_app_rows_state AS state (id, number, state, stamp)
VALUES (1, %s, 'ready', (EXTRACT(EPOCH FROM clock_timestamp()) * 1000000)::bigint)
ON CONFLICT (id) DO UPDATE SET number = EXCLUDED.number, state = 'ready', stamp = GREATEST(state.stamp, EXCLUDED.stamp)
"""


def push(entries: Iterable[Entry], *before: Statement) -> tuple[int, bool]:
    """Name the lanes in which these tasks wait, after other statements, and call workers.

    Returns how many lanes changed, and whether claims read them.
    """
    heads: dict[tuple[str, int], datetime] = {}
    for lane, score, _ in entries:
        at, band = queued_at_of(score) - PRECISION, int(score // BAND_WIDTH)
        if (lane, band) not in heads or at < heads[lane, band]:
            heads[lane, band] = at
    if not heads:
        return 0, True
    rows: list[tuple[Any, ...]] = []
    for (lane, band), head in heads.items():
        queue, task_type, needs, user, key, weight = parse_lane(lane)
        rows.append((band, queue, task_type, ",".join(needs), user, key, weight, head))
    changed, is_in_force, _ = ask("push", _BESIDE_CLAIMS, *before, (_PUSH, columns_of(rows, 8)), (_CALL, ()))[0]
    return changed, is_in_force


def name_recent() -> None:
    """Name the lanes of tasks that were queued lately: other processes may not know yet that claims read them."""
    if ask("name", _BESIDE_CLAIMS, (_NAME_RECENT, [RECENT_SECONDS])):
        wake.wake()


def misplaced() -> list[uuid.UUID]:
    """Return the first tasks of the lanes that claims would not find."""
    return [task_id for (task_id,) in fetch_together(_BY_INDEX, (_MISPLACED, ()))]


def build(number: int) -> bool:
    """Fill the tables anew for a generation, while no claim is under way; return false if a later one has begun."""
    with snapshot.without_claims():
        if snapshot.generation() != number:
            return False
        empty()
        gates.begin(snapshot.limits().items())
        fill(number)
    return True


def empty() -> None:
    """Forget all lanes, reservations, gates and turns."""
    for table in ("lane", "reservation", "gate", "turn"):
        execute(f"DELETE FROM queue_app_rows_{table}")


def fill(number: int) -> None:
    """Name the lanes of all waiting tasks anew, for a generation; no other claim may be under way."""
    execute("DELETE FROM queue_app_rows_lane")
    fetch_together(_BY_INDEX, (_FILL, ()))
    execute(_READY, [number])
