"""Read the queued rows as the index compares them: packed by the database, lane by lane.

A rolling comparison of a million rows would otherwise make a million records of them, only
to find that all is well.
"""

from __future__ import annotations

import uuid
from datetime import datetime
from typing import NamedTuple

from queue_app.core.lanes import lane_name
from queue_app.core.records import PackedLane
from queue_app.rows.database import fetch_all

Cursor = tuple[datetime, uuid.UUID]
_NIL = uuid.UUID(int=0)

# Users matter only where the queue keeps them apart: else each would make a lane of its own here.
# The place is that of core.lanes.score, but for a last bit: the database rounds twice.
_PACKED = """
WITH page AS MATERIALIZED (
    SELECT id, queue, task_type, capabilities, "user", concurrency_key, weight, priority, queued_at
    FROM queue_app_task WHERE status = 'queued' AND {where}
    ORDER BY queued_at, id LIMIT %(limit)s
), apart AS (
    SELECT name FROM queue_app_queue WHERE "order" = 'fair' OR max_concurrent_per_user IS NOT NULL
)
SELECT queue, task_type, capabilities,
    CASE WHEN queue IN (SELECT name FROM apart) THEN "user" ELSE '' END AS "user", concurrency_key, weight,
    string_agg(uuid_send(id), ''::bytea ORDER BY queued_at, id),
    string_agg(float8send((priority * 10000000000000000
        + (EXTRACT(EPOCH FROM queued_at) * 1000000)::bigint)::float8 / 1000), ''::bytea ORDER BY queued_at, id),
    (SELECT queued_at FROM page ORDER BY queued_at DESC, id DESC LIMIT 1),
    (SELECT id FROM page ORDER BY queued_at DESC, id DESC LIMIT 1)
FROM page GROUP BY 1, 2, 3, 4, 5, 6
"""


class Page(NamedTuple):
    """Some queued rows, by lane; the cursor (queued_at, id) of the last, ``None`` when there are none."""

    lanes: list[PackedLane]
    end: Cursor | None

    @property
    def size(self) -> int:
        """How many rows the page holds."""
        return sum(lane.size for lane in self.lanes)


def packed_page(after: Cursor | None, limit: int) -> Page:
    """Return the queued tasks that follow the cursor, oldest first."""
    queued_at, task_id = after or ("-infinity", _NIL)
    parameters = {"queued_at": queued_at, "id": task_id, "limit": limit}
    return _packed("(queued_at, id) > (%(queued_at)s, %(id)s)", parameters)


def packed_recent(seconds: float, limit: int) -> Page:
    """Return tasks that became queued within the last ``seconds``."""
    parameters = {"seconds": seconds, "limit": limit}
    return _packed("queued_at > clock_timestamp() - make_interval(secs => %(seconds)s)", parameters)


def _packed(where: str, parameters: dict[str, object]) -> Page:
    found = fetch_all(_PACKED.format(where=where), parameters)
    lanes = [PackedLane(lane_name(*row[:6]), bytes(row[6]), bytes(row[7])) for row in found]
    return Page(lanes, (found[0][8], found[0][9]) if found else None)
