"""Read the queued rows as the index takes them: packed by PostgreSQL, lane by lane.

Otherwise a comparison of a million rows would make a million Python records.
"""

from __future__ import annotations

import uuid
from datetime import datetime
from typing import Any, Final, NamedTuple

from queue_app.core.lanes import lane_name
from queue_app.core.records import PackedLane
from queue_app.sql.database import fetch_all
from queue_app.sql.prepared import Row

type Cursor = tuple[datetime, uuid.UUID]
_NIL: Final = uuid.UUID(int=0)

# Reads the index only. The conditions on queued_at alone change no result; they let the planner estimate row counts.
_END: Final = """
SELECT queued_at, id FROM queue_app_task WHERE status = 'queued' AND {after}
ORDER BY queued_at, id OFFSET %(limit)s - 1 LIMIT 1
"""
_OLDEST_OF_NEWEST: Final = _END.replace("ORDER BY queued_at, id", "ORDER BY queued_at DESC, id DESC")

# The user, if the queue keeps users apart. In other queues every user would make a lane here for no purpose.
_USER_THAT_MATTERS: Final = """CASE WHEN queue = ANY(ARRAY(
    SELECT name FROM queue_app_queue WHERE "order" = 'fair' OR max_concurrent_per_user IS NOT NULL
)) THEN "user" ELSE '' END"""
# The score equals that of core.lanes.score to the last bit: whole milliseconds are exact in a double, so only the last
# addition rounds. A time as a double is exact after rounding to microseconds, until the year 2106.
# PostgreSQL aggregates ids and scores of a lane in one pass, so both are in the same order.
PACKED: Final = """
SELECT queue, task_type, capabilities, {user}, concurrency_key, weight,
    string_agg(uuid_send(id), ''::bytea),
    string_agg(float8send(priority * 1e13::float8 + us / 1000 + (us %% 1000) / 1e3::float8), ''::bytea)
FROM {task}, LATERAL (SELECT round(date_part('epoch', queued_at) * 1e6)::bigint) AS at (us)
GROUP BY 1, 2, 3, 4, 5, 6
"""
_PACKED: Final = PACKED.format(
    user=_USER_THAT_MATTERS,
    task="(SELECT * FROM queue_app_task WHERE status = 'queued' AND {after} AND {until}) AS task",
)


class RowPage(NamedTuple):
    """Queued rows by lane; ``end`` is the cursor (queued_at, id) of the last row, ``None`` when none follow."""

    lanes: list[PackedLane]
    end: Cursor | None

    @property
    def size(self) -> int:
        return sum(lane.size for lane in self.lanes)


def packed_page(after: Cursor | None, limit: int) -> RowPage:
    """Return about ``limit`` queued tasks that follow the cursor, oldest first."""
    queued_at, task_id = after or ("-infinity", _NIL)
    follows, until = "queued_at >= %(queued_at)s AND (queued_at, id) > (%(queued_at)s, %(id)s)", "true"
    parameters: dict[str, Any] = {"queued_at": queued_at, "id": task_id}
    ends = fetch_all(_END.format(after=follows), parameters | {"limit": limit})
    if ends:
        until = "queued_at <= %(end_at)s AND (queued_at, id) <= (%(end_at)s, %(end_id)s)"
        parameters |= {"end_at": ends[0][0], "end_id": ends[0][1]}
    return RowPage(_lanes(follows, until, parameters), (ends[0][0], ends[0][1]) if ends else None)


def packed_recent(seconds: float, limit: int) -> RowPage:
    """Return the tasks that became queued within the last ``seconds``, but only about the ``limit`` newest ones."""
    recent = "queued_at > statement_timestamp() - make_interval(secs => %(seconds)s)"
    parameters: dict[str, Any] = {"seconds": seconds}
    first = fetch_all(_OLDEST_OF_NEWEST.format(after=recent), parameters | {"limit": limit})
    if first:
        recent = "queued_at >= %(queued_at)s AND (queued_at, id) >= (%(queued_at)s, %(id)s)"
        parameters = {"queued_at": first[0][0], "id": first[0][1]}
    return RowPage(_lanes(recent, "true", parameters), None)


def _lanes(after: str, until: str, parameters: dict[str, Any]) -> list[PackedLane]:
    return packed_lanes(fetch_all(_PACKED.format(after=after, until=until), parameters))


def packed_lanes(found: list[Row]) -> list[PackedLane]:
    """Return the lanes of rows as ``PACKED`` selects them."""
    return [PackedLane(lane_name(*row[:6]), bytes(row[6]), bytes(row[7])) for row in found]
