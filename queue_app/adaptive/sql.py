"""Read what adaptive limits are computed from: run times, failures and throttles of the tasks that pass a gate."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final, NamedTuple

from queue_app.adaptive.algorithm import MAX_KINDS, Sample
from queue_app.core.limits import Scope
from queue_app.sql.database import fetch_all, fetch_value

#: Age of the oldest task of a sample (s), tasks in a sample, and maximum number of ended tasks that are read for one.
WINDOW_SECONDS: Final = 60
SAMPLE: Final = 200
MAX_READ: Final = 10_000

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
    """An adaptive limit with its newest step, as the doctor and the metrics show it."""

    scope: str
    name: str
    least: int
    value: int
    ratio: float | None
    cause: str
    reason: str
    stepped_at: datetime

    @property
    def label(self) -> str:
        """Its name as commands write it."""
        return f"{self.scope}:{self.name}" if self.name else self.scope


def adaptive() -> list[Adaptive]:
    """Return the adaptive limits with their newest values, by name."""
    found = fetch_all("""
        SELECT scope, name, COALESCE(least, 1), newest.* FROM (
            SELECT 'everything' AS scope, '' AS name, 'a' AS gate, min_concurrent AS least, adaptive
            FROM queue_app_runtimesettings
            UNION ALL SELECT 'queue', name, 'q:' || name, min_concurrent, adaptive FROM queue_app_queue
            UNION ALL SELECT scope, name, left(scope, 1) || ':' || name, min_concurrent, adaptive FROM queue_app_limit
        ) AS row CROSS JOIN LATERAL (
            SELECT value, ratio, cause, reason, stepped_at
            FROM queue_app_limitstep AS s WHERE s.gate = row.gate ORDER BY at DESC LIMIT 1
        ) AS newest WHERE adaptive <> '' ORDER BY scope, name
    """)
    return [Adaptive(*row) for row in found]
