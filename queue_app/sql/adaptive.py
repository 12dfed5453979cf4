"""Read what adaptive limits are computed from: run times, failures and throttles of the tasks that pass a gate."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Final, NamedTuple

from queue_app.core.adaptive import MAX_KINDS, Sample
from queue_app.core.limits import Scope
from queue_app.sql.database import fetch_all, fetch_value

#: Age of the oldest task of a sample (s), tasks in a sample, and maximum number of ended tasks that are read for one.
WINDOW_SECONDS: Final = 60
SAMPLE: Final = 200
MAX_READ: Final = 10_000

#: Whether any limit is adaptive: a question of ``sql.upkeep``.
ANY_ADAPTIVE: Final = " OR ".join(
    f"EXISTS (SELECT FROM {table} WHERE adaptive <> '')"
    for table in ("queue_app_queue", "queue_app_limit", "queue_app_runtimesettings")
)
# A limit of a key without a colon is also one of each key "name:...".
_PASSES: Final = {
    "everything": "true",
    Scope.QUEUE: "t.queue = %(name)s",
    Scope.TYPE: "t.task_type = %(name)s",
    Scope.KEY: "(t.concurrency_key = %(name)s OR (%(name)s NOT LIKE '%%:%%'"
    " AND starts_with(t.concurrency_key, %(name)s || ':')))",
}
# A parameter may be a secret, so that only a part of its hash is kept.
_KIND: Final = """t.task_type || CASE WHEN %(by)s = '' THEN '' ELSE ' ' || COALESCE((
    SELECT left(md5(parameters->>%(by)s), 8) FROM queue_app_taskpayload WHERE task_id = t.id), '') END"""
_ENDED: Final = f"""
SELECT * FROM queue_app_task WHERE finished_at >= %(since)s ORDER BY finished_at DESC LIMIT {MAX_READ}
"""
_SAMPLES: Final = f"""
SELECT kind, count(*), percentile_cont(ARRAY[0.25, 0.5, 0.75]) WITHIN GROUP (ORDER BY ran) FROM (
    SELECT {_KIND} AS kind, GREATEST(0, EXTRACT(EPOCH FROM t.finished_at - t.started_at))::float8 AS ran
    FROM ({_ENDED}) AS t WHERE status = 'completed' AND t.started_at >= %(changed)s AND {{passes}}
    ORDER BY t.finished_at DESC LIMIT {SAMPLE}
) AS ended GROUP BY kind ORDER BY 2 DESC LIMIT {MAX_KINDS}
"""
_COMPLETED: Final = f"SELECT count(*) FROM ({_ENDED}) AS t WHERE status = 'completed' AND {{passes}}"
_FAILURES: Final = f"""
SELECT count(t.id), COALESCE(max(a.id), %(after)s) FROM (
    SELECT id, task_id FROM queue_app_taskattempt WHERE id > %(after)s ORDER BY id LIMIT {MAX_READ}
) AS a LEFT JOIN queue_app_task AS t ON t.id = a.task_id AND {{passes}}
"""
_THROTTLED: Final = """
SELECT max(throttled_until) FROM (
    SELECT 'queue' AS scope, name, throttled_until FROM queue_app_queue
    UNION ALL SELECT scope, name, throttled_until FROM queue_app_limit
) AS gate WHERE scope = %(scope)s AND (name = %(name)s OR (scope = 'key' AND starts_with(name, %(name)s || ':')))
"""


class GateActivity(NamedTuple):
    """What happened behind one gate since the last step."""

    samples: Mapping[str, Sample]
    completed: int
    failures: int
    last_attempt: int  # id of the newest recorded attempt
    throttled_until: datetime | None


def activity(  # noqa: PLR0913 - by name
    scope: str, name: str, *, by: str, since: datetime, changed: datetime, after: int | None
) -> GateActivity:
    """Return what happened behind a gate since ``since``; samples hold tasks that started since ``changed``.

    ``by`` names a parameter that tells kinds of tasks apart. Failures are those recorded after the id ``after``.
    """
    if after is None:
        after = int(fetch_value("SELECT COALESCE(max(id), 0) FROM queue_app_taskattempt"))
    passes = _PASSES[scope]
    params: dict[str, Any] = {"scope": scope, "name": name, "by": by, "changed": changed, "after": after}
    window = fetch_value(f"SELECT statement_timestamp() - interval '{WINDOW_SECONDS} s'")
    found = fetch_all(_SAMPLES.format(passes=passes), params | {"since": max(window, changed)})
    failures, last = fetch_all(_FAILURES.format(passes=passes), params)[0]
    return GateActivity(
        samples={kind: Sample(count, *quartiles) for kind, count, quartiles in found},
        completed=int(fetch_value(_COMPLETED.format(passes=passes), params | {"since": max(window, since)})),
        failures=failures,
        last_attempt=last,
        throttled_until=fetch_value(_THROTTLED, params),
    )


class Adaptive(NamedTuple):
    """An adaptive limit as metrics show it."""

    scope: str
    name: str
    value: int
    ratio: float | None


def adaptive() -> list[Adaptive]:
    """Return the adaptive limits with their newest values, by name."""
    found = fetch_all("""
        SELECT scope, name, value, ratio FROM (
            SELECT 'everything' AS scope, '' AS name, 'a' AS gate FROM queue_app_runtimesettings WHERE adaptive <> ''
            UNION ALL SELECT 'queue', name, 'q:' || name FROM queue_app_queue WHERE adaptive <> ''
            UNION ALL SELECT scope, name, left(scope, 1) || ':' || name FROM queue_app_limit WHERE adaptive <> ''
        ) AS row CROSS JOIN LATERAL (
            SELECT value, ratio FROM queue_app_limitstep AS s WHERE s.gate = row.gate ORDER BY at DESC LIMIT 1
        ) AS newest ORDER BY scope, name
    """)
    return [Adaptive(*row) for row in found]


# Read what advice is made of: the snapshots of the last half hour, and the workers that are gone.

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
