"""Count the tasks that ended in a window by task type, user or concurrency key, with histograms of their times."""

from collections import Counter
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final

from queue_app.core.histogram import BOUNDS, from_json, percentile
from queue_app.sql.database import WITHOUT_JIT, fetch_together

#: One pass over the ended tasks; a group for the totals, and one for each bucket and version.
_ENDED: Final = """
SELECT name, since, ran, waited, version, GROUPING(ran, waited, version), count(*),
    count(*) FILTER (WHERE status = 'completed'), count(*) FILTER (WHERE status IN ('failed', 'dead_letter')),
    sum(failures)::bigint, max(finished_at)
FROM (
    SELECT {column} AS name, date_trunc('{unit}', finished_at, 'UTC') AS since, t.status, failures, finished_at,
        width_bucket(EXTRACT(EPOCH FROM finished_at - t.started_at)::float8, %s::float8[]) AS ran,
        width_bucket(GREATEST(0, EXTRACT(EPOCH FROM t.started_at - queued_at))::float8, %s::float8[]) AS waited,
        COALESCE(w.version, '') AS version
    FROM queue_app_task AS t LEFT JOIN queue_app_worker AS w ON w.id = t.worker_id
    WHERE finished_at > %s AND finished_at <= %s AND {column} <> ''
) AS ended
GROUP BY GROUPING SETS ((name, since), (name, since, ran), (name, since, waited), (name, since, version))
"""
#: Kind -> (column, length of a period).
_KINDS: Final = {"type": ("task_type", "hour"), "user": ('"user"', "day"), "key": ("concurrency_key", "day")}
_TOTAL, _BY_RUN, _BY_WAIT, _BY_VERSION = 0b111, 0b011, 0b101, 0b110
_NEVER: Final = datetime.min.replace(tzinfo=UTC)


@dataclass(slots=True)
class EndedTotals:
    """The ended tasks of one task type, user or key in a period."""

    name: str
    completed: int = 0
    failed: int = 0
    other: int = 0
    failures: int = 0  # failed attempts
    last_at: datetime | None = None
    waits: Counter[int] = field(default_factory=Counter)
    runs: Counter[int] = field(default_factory=Counter)
    versions: Counter[str] = field(default_factory=Counter)

    def add(self, row: Any) -> None:
        """Add a row of ``TaskStats``."""
        self.completed += row.completed
        self.failed += row.failed
        self.other += row.other
        self.failures += row.failures
        self.last_at = max(self.last_at or row.last_at, row.last_at)
        self.waits += from_json(row.waits)
        self.runs += from_json(row.runs)
        self.versions += Counter(row.versions)

    @property
    def total(self) -> int:
        return self.completed + self.failed + self.other

    @property
    def failed_share(self) -> float:
        return 100 * self.failed / self.total if self.total else 0.0

    @property
    def wait_p50(self) -> float | None:
        """Median wait before the last attempt in seconds."""
        return percentile(self.waits, 0.5)

    @property
    def wait_p95(self) -> float | None:
        return percentile(self.waits, 0.95)

    @property
    def run_p50(self) -> float | None:
        """Median run time of the last attempt in seconds."""
        return percentile(self.runs, 0.5)

    @property
    def run_p95(self) -> float | None:
        return percentile(self.runs, 0.95)


@dataclass(slots=True)
class EndedInPeriod(EndedTotals):
    """The ended tasks of one name in the hour or day that began at ``since``."""

    since: datetime = _NEVER


def ended(kind: str, since: datetime, until: datetime) -> list[EndedInPeriod]:
    """Return the tasks that ended after ``since``, up to ``until``, summed by name and period."""
    column, unit = _KINDS[kind]
    found: dict[tuple[str, datetime], EndedInPeriod] = {}
    bounds = list(BOUNDS)
    rows = fetch_together(WITHOUT_JIT, (_ENDED.format(column=column, unit=unit), [bounds, bounds, since, until]))
    for name, period, ran, waited, version, group, count, *totals in rows:
        row = found.setdefault((name, period), EndedInPeriod(name, since=period))
        if group == _TOTAL:
            row.completed, row.failed, row.failures, row.last_at = totals
            row.other = count - row.completed - row.failed
        elif group == _BY_RUN and ran is not None:  # null: it never started
            row.runs[ran] += count
        elif group == _BY_WAIT and waited is not None:
            row.waits[waited] += count
        elif group == _BY_VERSION and version:
            row.versions[version] += count
    return list(found.values())
