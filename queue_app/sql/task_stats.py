"""Count the tasks that ended in a window by task type, user or concurrency key, with histograms of their times."""

from collections import Counter
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Final

from queue_app.core.histogram import BOUNDS
from queue_app.sql.database import fetch_all

#: One pass over the ended tasks; a group for the totals, and one for each bucket and version.
_ENDED: Final = """
SELECT name, since, ran, waited, version, GROUPING(ran, waited, version), count(*),
    count(*) FILTER (WHERE status = 'completed'), count(*) FILTER (WHERE status IN ('failed', 'dead_letter')),
    sum(failures)::bigint, max(finished_at)
FROM (
    SELECT {column} AS name, date_trunc('{unit}', finished_at, 'UTC') AS since, t.status, failures, finished_at,
        width_bucket(EXTRACT(EPOCH FROM finished_at - t.started_at)::float8, %(bounds)s::float8[]) AS ran,
        width_bucket(GREATEST(0, EXTRACT(EPOCH FROM t.started_at - queued_at))::float8, %(bounds)s::float8[]) AS waited,
        COALESCE(w.version, '') AS version
    FROM queue_app_task AS t LEFT JOIN queue_app_worker AS w ON w.id = t.worker_id
    WHERE finished_at > %(since)s AND finished_at <= %(until)s AND {column} <> ''
) AS ended
GROUP BY GROUPING SETS ((name, since), (name, since, ran), (name, since, waited), (name, since, version))
"""
#: Kind -> (column, length of a period).
_KINDS: Final = {"type": ("task_type", "hour"), "user": ('"user"', "day"), "key": ("concurrency_key", "day")}
_TOTAL, _BY_RUN, _BY_WAIT, _BY_VERSION = 0b111, 0b011, 0b101, 0b110


_NEVER: Final = datetime.min.replace(tzinfo=UTC)


@dataclass(slots=True)
class Ended:
    """What ended of one name in one hour or day."""

    name: str
    since: datetime
    completed: int = 0
    failed: int = 0
    other: int = 0
    failures: int = 0
    last_at: datetime = _NEVER
    waits: Counter[int] = field(default_factory=Counter)
    runs: Counter[int] = field(default_factory=Counter)
    versions: Counter[str] = field(default_factory=Counter)

    @property
    def total(self) -> int:
        return self.completed + self.failed + self.other


def ended(kind: str, since: datetime, until: datetime) -> list[Ended]:
    """Return what ended after ``since``, up to ``until``, by name and period."""
    column, unit = _KINDS[kind]
    found: dict[tuple[str, datetime], Ended] = {}
    rows = fetch_all(_ENDED.format(column=column, unit=unit), {"bounds": list(BOUNDS), "since": since, "until": until})
    for name, period, ran, waited, version, group, count, *totals in rows:
        row = found.setdefault((name, period), Ended(name, period))
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
