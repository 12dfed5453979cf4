"""Read what advice is made of: the snapshots of the last half hour, and the workers that are gone."""

from collections.abc import Sequence
from datetime import datetime
from typing import Final, NamedTuple

from queue_app.sql.database import fetch_all

_WAITING: Final = "(SELECT COALESCE(sum(value::int), 0) FROM jsonb_each_text(depth))"
_HELD: Final = f"""
SELECT queue, count(*), count(*) FILTER (WHERE waiting > 0 AND active >= max_concurrent),
    percentile_cont(0.5) WITHIN GROUP (ORDER BY oldest_seconds) FILTER (WHERE waiting > 0),
    avg(waiting)::float8, avg(active)::float8, sum(enqueued), sum(completed + failed)
FROM (SELECT *, {_WAITING} AS waiting FROM queue_app_queuestats WHERE taken_at >= %(since)s) AS snapshot
WHERE max_concurrent IS NOT NULL GROUP BY queue
"""
_BANDS: Final = """
SELECT key, sum(value::int), count(DISTINCT taken_at)
FROM queue_app_queuestats, jsonb_each_text(depth) WHERE taken_at >= %(since)s GROUP BY key
"""
_OFFERED: Final = """
SELECT max(COALESCE(stopped_at, last_heartbeat_at)) FROM queue_app_worker WHERE capabilities @> %(names)s::varchar[]
"""


class Capped(NamedTuple):
    """A queue with a fixed limit, over the snapshots of a period."""

    queue: str
    snapshots: int
    at_limit: int  # snapshots in which tasks waited and the limit was reached
    oldest: float | None  # median age of the oldest waiting task in seconds
    waiting: float  # means
    active: float
    enqueued: int
    ended: int


def capped(since: datetime) -> list[Capped]:
    """Return the queues that had a limit since a time."""
    return [Capped(*row) for row in fetch_all(_HELD, {"since": since})]


def waiting_by_band(since: datetime) -> dict[str, tuple[int, int]]:
    """Return {band: (sum of the waiting tasks over the snapshots, number of the snapshots)}."""
    return {band: (total, snapshots) for band, total, snapshots in fetch_all(_BANDS, {"since": since})}


def offered_until(capabilities: Sequence[str]) -> datetime | None:
    """Return when a worker last offered these capabilities; ``None``: never, as far as the rows go."""
    (found,) = fetch_all(_OFFERED, {"names": list(capabilities)})[0]
    return found if isinstance(found, datetime) else None
