"""Read what advice is made of: the snapshots of the last half hour, and the workers that are gone."""

from collections.abc import Sequence
from datetime import datetime
from typing import Final, NamedTuple

from queue_app.sql.database import fetch_all, fetch_value

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
#: Number of waiting and of ended tasks that are read to judge types and keys.
MAX_READ: Final = 10_000
_WAITING_KINDS: Final = f"""
SELECT task_type, concurrency_key, count(*)::float8,
    EXTRACT(EPOCH FROM statement_timestamp() - min(queued_at))::float8
FROM (SELECT task_type, concurrency_key, queued_at FROM queue_app_task WHERE status = 'queued'
    ORDER BY queued_at, id LIMIT {MAX_READ}) AS task GROUP BY 1, 2
"""
_RUNNING_KINDS: Final = """
SELECT task_type, concurrency_key, count(*) FROM queue_app_task WHERE status = 'executing' GROUP BY 1, 2
"""
# Busy slots on average, and ended tasks. Where more tasks ended than are read, the period is shorter.
_RAN: Final = f"""
WITH ended AS (SELECT task_type, concurrency_key, started_at, finished_at FROM queue_app_task
    WHERE finished_at >= %(since)s ORDER BY finished_at DESC LIMIT {MAX_READ}),
period AS (SELECT CASE WHEN count(*) < {MAX_READ} THEN %(since)s ELSE min(finished_at) END AS since FROM ended),
ran AS (SELECT * FROM ended UNION ALL (SELECT task_type, concurrency_key, started_at, NULL FROM queue_app_task
    WHERE status = 'executing' LIMIT {MAX_READ}))
SELECT task_type, concurrency_key,
    sum(EXTRACT(EPOCH FROM COALESCE(finished_at, statement_timestamp()) - GREATEST(started_at, since)))::float8
        / EXTRACT(EPOCH FROM statement_timestamp() - max(since))::float8,
    count(finished_at)::float8
FROM ran, period WHERE started_at IS NOT NULL GROUP BY 1, 2
"""
_OFFERED: Final = """
SELECT max(COALESCE(stopped_at, last_heartbeat_at)) FROM queue_app_worker WHERE capabilities @> %(names)s::varchar[]
"""


class CappedQueue(NamedTuple):
    """A queue with a fixed limit, over the snapshots of a period."""

    queue: str
    snapshots: int
    at_limit: int  # snapshots in which tasks waited and the limit was reached
    oldest: float | None  # median age of the oldest waiting task in seconds
    waiting: float  # means
    active: float
    enqueued: int
    ended: int


def capped(since: datetime) -> list[CappedQueue]:
    """Return the queues that had a limit since a time."""
    return [CappedQueue(*row) for row in fetch_all(_HELD, {"since": since})]


def waiting_by_kind() -> dict[tuple[str, str], tuple[float, float]]:
    """Return {(type, key): (waiting tasks, age of the oldest in seconds)} of the tasks that have waited longest."""
    return {(kind, key): (count, oldest) for kind, key, count, oldest in fetch_all(_WAITING_KINDS)}


def running_by_kind() -> dict[tuple[str, str], int]:
    """Return {(type, key): running tasks}."""
    return {(kind, key): count for kind, key, count in fetch_all(_RUNNING_KINDS)}


def ran_by_kind(since: datetime) -> dict[tuple[str, str], tuple[float, float]]:
    """Return {(type, key): (slots in use on average, ended tasks)}."""
    return {(kind, key): (busy, ended) for kind, key, busy, ended in fetch_all(_RAN, {"since": since})}


def ended_since(since: datetime) -> int:
    """Return how many tasks ended since a time, by the snapshots."""
    query = "SELECT COALESCE(sum(completed + failed), 0) FROM queue_app_queuestats WHERE taken_at >= %s"
    return int(fetch_value(query, [since]))


def waiting_by_band(since: datetime) -> dict[str, tuple[int, int]]:
    """Return {band: (sum of the waiting tasks over the snapshots, number of the snapshots)}."""
    return {band: (total, snapshots) for band, total, snapshots in fetch_all(_BANDS, {"since": since})}


def offered_until(capabilities: Sequence[str]) -> datetime | None:
    """Return when a worker last offered these capabilities; ``None``: no stored worker did."""
    (found,) = fetch_all(_OFFERED, {"names": list(capabilities)})[0]
    return found if isinstance(found, datetime) else None
