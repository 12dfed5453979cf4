"""Read recorded tasks for a simulation: when they waited and ran, never what they were called with."""

import uuid
from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from typing import Any, Final, NamedTuple

from queue_app.sql.database import fetch_all, fetch_value
from queue_app.sql.stats import MAX_READ

PAGE: Final = 20_000
_US: Final = "(EXTRACT(EPOCH FROM {}) * 1e6)::bigint"
_KIND: Final = 't.queue, t.task_type, t.priority, t.capabilities, t."user", t.concurrency_key, t.weight'
_TIMES: Final = ", ".join(_US.format(f"t.{name}_at") for name in ("queued", "started", "finished"))
_ENDED: Final = f"""
SELECT {_KIND}, {_TIMES}, t.worker_id, t.status, t.finished_at, t.id FROM queue_app_task AS t
WHERE t.finished_at >= %(since)s AND (t.finished_at, t.id) > (%(last)s, %(id)s)
ORDER BY t.finished_at, t.id LIMIT {PAGE}
"""
_PENDING: Final = f"""
SELECT {_KIND}, {_TIMES}, t.worker_id, t.status FROM queue_app_task AS t
WHERE t.status IN ('queued', 'executing') AND t.queued_at < %(until)s
"""
_COUNTED: Final = """
SELECT count(*) FROM (
    (SELECT FROM queue_app_task WHERE finished_at >= %(since)s AND queued_at < %(until)s LIMIT %(most)s)
    UNION ALL
    (SELECT FROM queue_app_task WHERE status IN ('queued', 'executing') AND queued_at < %(until)s LIMIT %(most)s)
) AS task
"""
# The last attempt of an ended task is the task's own row.
_FAILED: Final = f"""
SELECT {_KIND}, {_US.format("a.started_at")}, {_US.format("a.finished_at")}
FROM queue_app_taskattempt AS a JOIN queue_app_task AS t ON t.id = a.task_id
WHERE a.finished_at >= %(since)s AND a.started_at < %(until)s AND (a.attempt < t.attempt OR t.finished_at IS NULL)
"""
_EDITS: Final = """
SELECT count(*) FROM queue_app_auditentry WHERE at BETWEEN %(since)s AND %(until)s
    AND target IN ('queue', 'limit', 'prioritypolicy', 'runtimesettings', 'settings')
"""


class RecordedTask(NamedTuple):
    """A task of the window; times in µs."""

    kind: tuple[Any, ...]  # queue, task type, band, capabilities, user, key, weight
    queued_at: int | None
    started_at: int | None
    finished_at: int | None
    worker_id: uuid.UUID | None
    status: str


def are_more(since: datetime, until: datetime, most: int) -> bool:
    """Return whether ``tasks`` yields more than ``most``, without reading them."""
    return int(fetch_all(_COUNTED, {"since": since, "until": until, "most": most + 1})[0][0]) > most


def tasks(since: datetime, until: datetime) -> Iterator[RecordedTask]:
    """Yield the tasks that ended since ``since`` or are pending, and were queued before ``until``."""
    last: dict[str, Any] = {"since": since, "last": since, "id": uuid.UUID(int=0)}
    while page := fetch_all(_ENDED, last):
        for *row, ended_at, task_id in page:
            last |= {"last": ended_at, "id": task_id}
            found = _task(row)
            if found.queued_at and found.queued_at < until.timestamp() * 1e6:
                yield found
    yield from map(_task, fetch_all(_PENDING, {"until": until}))


def _task(row: Sequence[Any]) -> RecordedTask:
    *kind, queued_at, started_at, finished_at, worker_id, status = row
    return RecordedTask(_kind(*kind), queued_at, started_at, finished_at, worker_id, status)


def _kind(queue: str, task_type: str, priority: int, capabilities: list[str], *others: Any) -> tuple[Any, ...]:
    return (queue, task_type, priority, tuple(capabilities), *others)


def failed_attempts(since: datetime, until: datetime) -> Iterator[tuple[tuple[Any, ...], int, int]]:
    """Yield (kind, start, end) of the attempts that were retried."""
    for *kind, started_at, finished_at in fetch_all(_FAILED, {"since": since, "until": until}):
        yield _kind(*kind), started_at, finished_at


def edits(since: datetime, until: datetime) -> int:
    """Return how often people edited limits and policies in the window."""
    return int(fetch_all(_EDITS, {"since": since, "until": until})[0][0])


# Every snapshot has a row for each queue; the oldest queue has most of them.
_OUTAGES: Final = """
WITH seen AS (
    SELECT taken_at AS at FROM queue_app_queuestats WHERE queue = %(queue)s AND taken_at >= (
        SELECT COALESCE(max(taken_at), %(since)s) FROM queue_app_queuestats
        WHERE queue = %(queue)s AND taken_at <= %(since)s
    ) AND taken_at < %(until)s
    UNION SELECT LEAST(%(until)s, statement_timestamp())
)
SELECT GREATEST(before, %(since)s) AT TIME ZONE 'UTC', at AT TIME ZONE 'UTC'
FROM (SELECT at, lag(at) OVER (ORDER BY at) AS before FROM seen) AS gap
WHERE before IS NOT NULL AND at - GREATEST(before, %(since)s) > %(longest)s ORDER BY at LIMIT 10
"""
#: Longest time between snapshots while a scheduler runs, with some patience.
LONGEST_GAP: Final = timedelta(minutes=5)


def outages(since: datetime, until: datetime) -> list[tuple[datetime, datetime]]:
    """Return the times of the window in which no scheduler took a snapshot; none without snapshots at all."""
    queue = "SELECT name FROM queue_app_queue ORDER BY created_at, name LIMIT 1"
    params = {"queue": fetch_value(queue), "since": since, "until": until, "longest": LONGEST_GAP}
    return [(before, at) for before, at in fetch_all(_OUTAGES, params)]


# Read what suggestions are made of: the snapshots of the last half hour, and the tasks that ended in it.

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
