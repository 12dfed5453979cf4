"""Read the snapshots of queues as series over time."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from queue_app.core.priorities import Band
from queue_app.sql.database import fetch_all

_PERCENTILES: Final = tuple(f"{what}_p{share}" for what in ("wait", "run") for share in (50, 95, 99))
_BANDS: Final = tuple(band.label for band in Band)

# Over queues, depths and rates are summed, and times are those of the slowest queue, as percentiles cannot be added.
# Over the snapshots of one step, depths and rates are averaged, and times are again the slowest. The queues are named,
# so that PostgreSQL reads one range of the unique index for each and does not scan.
_SERIES: Final = f"""
SELECT EXTRACT(EPOCH FROM date_bin(make_interval(secs => %(step)s), taken_at, timestamptz 'epoch'))::float8,
    {", ".join(f"avg({band})::float8" for band in _BANDS)}, avg(active)::float8,
    avg(enqueued)::float8, avg(completed)::float8, avg(failed)::float8,
    {", ".join(f"max({name})" for name in _PERCENTILES)}
FROM (
    SELECT taken_at, {", ".join(f"sum(COALESCE((depth->>'{band}')::int, 0)) AS {band}" for band in _BANDS)},
        sum(active) AS active, sum(enqueued) AS enqueued, sum(completed) AS completed, sum(failed) AS failed,
        {", ".join(f"max({name}) AS {name}" for name in _PERCENTILES)}
    FROM queue_app_queuestats WHERE queue = ANY(%(queues)s) AND taken_at >= %(since)s GROUP BY taken_at
) AS snapshot GROUP BY 1 ORDER BY 1
"""

_RECENT: Final = """
SELECT queue, taken_at, completed, failed,
    (SELECT sum(value::int) FROM jsonb_each_text(depth))::int
FROM queue_app_queuestats WHERE queue = ANY(%s) AND taken_at >= %s ORDER BY queue, taken_at
"""

_ENDED: Final = """
SELECT queue, count(*) FILTER (WHERE status = 'completed'), count(*) FILTER (WHERE status IN ('failed', 'dead_letter'))
FROM queue_app_task WHERE finished_at >= statement_timestamp() - make_interval(secs => 60) GROUP BY queue
"""


@dataclass(frozen=True, slots=True)
class Series:
    """Values over time; ``times`` are seconds since 1970, and every list has the length of ``times``."""

    times: list[float]
    values: dict[str, list[float | None]]


@dataclass(frozen=True, slots=True)
class Recent:
    """A summary of one snapshot of one queue."""

    queue: str
    taken_at: datetime
    completed: int
    failed: int
    depth: int | None


def series(queues: Sequence[str], since: datetime, step: float) -> Series:
    """Return depth per band, ``active``, rates per minute and percentiles in seconds, in steps of ``step`` seconds."""
    found = fetch_all(_SERIES, {"queues": list(queues), "since": since, "step": step})
    names = [*_BANDS, "active", "enqueued", "completed", "failed", *_PERCENTILES]
    columns: list[list[Any]] = [list(column) for column in zip(*found, strict=True)]
    if not columns:
        columns = [[] for _ in ("time", *names)]
    return Series(columns[0], dict(zip(names, columns[1:], strict=True)))


def recent(queues: Sequence[str], since: datetime) -> list[Recent]:
    """Return the snapshots of the queues since a time, by queue, oldest first."""
    return [Recent(*row) for row in fetch_all(_RECENT, [list(queues), since])]


def ended_lately() -> dict[str, tuple[int, int]]:
    """Return {queue: (completed, failed)} of the tasks that ended within the last 60 seconds."""
    return {queue: (completed, failed) for queue, completed, failed in fetch_all(_ENDED)}
