"""Numbers for metrics, autoscaling, charts and statistics. The cost does not grow with the number of tasks."""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple

from queue_app.core import rooms
from queue_app.core.counters import BOUNDS, from_json, percentile
from queue_app.core.priorities import Band
from queue_app.sql import locks
from queue_app.sql.database import WITHOUT_JIT, fetch_all, fetch_together, fetch_value, is_read_only
from queue_app.sql.doctor import CHECK_IS_OLD, WATCHDOG
from queue_app.sql.snapshot import Way, way


@dataclass(frozen=True, slots=True)
class RowStats:
    """Tasks by state, waits, workers, pauses, maintenance jobs and the generation, by the database's clock."""

    states: dict[str, int]  # state -> stored tasks, estimated where there are many
    waits: dict[int, tuple[float, ...]]  # band -> waits of the last ended tasks, one for each of PERCENTILES
    workers: dict[str, int]
    slots: int  # of active workers
    paused: dict[str, bool]  # queue -> whether it, or everything, is paused
    job_ages: dict[str, float]  # upkeep job -> seconds since its last success
    stalled: dict[str, int]  # kind -> stalls that the watchdog found at its last check
    is_watched: bool  # whether the watchdog has checked lately
    of_rooms: dict[str, dict[Any, float]]  # metric -> its value for each set of labels
    way: Way  # where claims find tasks
    rebuild_seconds: float | None  # duration of the last rebuild, or of the current one so far
    rebuilding: bool
    is_read_only: bool  # whether the server refuses writes, like a standby
    leader_lapses: float | None  # seconds after which the leadership of the schedulers expires; None without a leader


def read() -> RowStats:
    """Return the numbers."""
    workers = fetch_all("SELECT status, count(*), sum(concurrency) FROM queue_app_worker GROUP BY status")
    paused = fetch_all("SELECT name, paused FROM queue_app_queue")
    is_all_paused = fetch_value("SELECT paused FROM queue_app_runtimesettings WHERE id = 1")
    jobs = fetch_all(
        "SELECT name, EXTRACT(EPOCH FROM clock_timestamp() - succeeded_at)::float8,"
        " ARRAY(SELECT jsonb_path_query(progress, '$.stalls[*].kind') #>> '{}')"
        " FROM queue_app_maintenancejob WHERE succeeded_at IS NOT NULL"
    )
    ages = {name: max(0.0, age) for name, age, _ in jobs}
    check_age = ages.pop(WATCHDOG, math.inf)
    generation = fetch_all(
        "SELECT EXTRACT(EPOCH FROM COALESCE(ready_at, clock_timestamp()) - started_at)::float8,"
        " ready_at IS NULL FROM queue_app_indexgeneration WHERE id = 1"
    )
    seconds, rebuilding = generation[0] if generation else (None, False)
    return RowStats(
        states=states(),
        waits=waits(),
        workers={status: count for status, count, _ in workers},
        slots=sum(int(slots or 0) for status, _, slots in workers if status == "active"),
        paused={name: bool(is_all_paused or is_paused) for name, is_paused in paused},
        job_ages=ages,
        stalled=Counter(kind for _, _, kinds in jobs for kind in kinds),
        is_watched=check_age <= CHECK_IS_OLD,
        of_rooms={name: values for measure in rooms.each("metrics") for name, values in measure().items()},
        way=way(),
        rebuild_seconds=seconds,
        rebuilding=bool(rebuilding),
        is_read_only=is_read_only(),
        leader_lapses=locks.lapses_in(locks.LEADER),
    )


#: Number of the last ended tasks whose run times are averaged, and whose waits are compared.
SAMPLE: Final = 2000
PERCENTILES: Final = (50, 95, 99)
#: Number of rows up to which they are counted; of more, PostgreSQL's statistics know the shares of the states.
COUNTED: Final = 50_000
_STATES: Final = """
SELECT status, round(reltuples * share)::bigint FROM pg_class, pg_stats,
    unnest(most_common_vals::text::text[], most_common_freqs) AS common (status, share)
WHERE pg_class.oid = %s::regclass AND tablename = relname AND attname = %s
    AND schemaname = relnamespace::regnamespace::text AND reltuples > %s
"""
_FEW_STATES: Final = "SELECT {0}, count(*) FROM (SELECT {0} FROM {1} LIMIT %s) AS first GROUP BY 1"
_WAITS: Final = """
SELECT priority, percentile_disc(%s::float8[]) WITHIN GROUP (ORDER BY GREATEST(0, wait)) FROM (
    SELECT priority, EXTRACT(EPOCH FROM started_at - queued_at)::float8 AS wait FROM queue_app_task
    WHERE finished_at IS NOT NULL ORDER BY finished_at DESC LIMIT %s
) AS ended WHERE wait IS NOT NULL GROUP BY priority
"""


def states() -> dict[str, int]:
    """Return the number of stored tasks by state: exact while they are few, else as the last ANALYZE found them.

    Executing ones are always exact: there are no more than slots.
    """
    found = counts_of("queue_app_task", "status")
    executing = fetch_value("SELECT count(*) FROM queue_app_task WHERE status = 'executing'")
    return found | {"executing": int(executing)}


def counts_of(table: str, column: str) -> dict[str, int]:
    """Return the number of rows by state: exact while they are few, else as the last ANALYZE found them."""
    estimated = fetch_all(_STATES, [table, column, COUNTED])
    return dict(estimated or fetch_all(_FEW_STATES.format(column, table), [2 * COUNTED]))


def waits() -> dict[int, tuple[float, ...]]:
    """Return for each band how long the last ended tasks waited for their last attempt."""
    shares = [percentile / 100 for percentile in PERCENTILES]
    return {band: tuple(found) for band, found in fetch_all(_WAITS, [shares, SAMPLE])}


class Active(NamedTuple):
    """Executing tasks that count against the same limits, and the slots they take."""

    queue: str
    task_type: str
    key: str
    user: str
    tasks: int
    slots: int


def active() -> list[Active]:
    """Return the executing tasks, grouped as limits count them."""
    found = fetch_all(
        'SELECT queue, task_type, concurrency_key, "user", count(*), sum(weight) FROM queue_app_task'
        " WHERE status = 'executing' GROUP BY 1, 2, 3, 4"
    )
    return [Active(*row) for row in found]


def mean_seconds(queue: str) -> float | None:
    """Return the mean run time of the queue's tasks among the last ended ones; ``None`` when there are none."""
    mean: float | None = fetch_value(
        "SELECT avg(EXTRACT(EPOCH FROM finished_at - started_at))::float8 FROM (SELECT queue, started_at, finished_at"
        " FROM queue_app_task WHERE finished_at IS NOT NULL ORDER BY finished_at DESC LIMIT %s) AS ended"
        " WHERE queue = %s AND started_at IS NOT NULL",
        [SAMPLE, queue],
    )
    return mean


# Read the snapshots of queues as series over time.

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

# Percentiles cannot be added: that of a window is the mean of its minutes, weighted by the tasks that ended in them.
_WINDOWS: Final = """
SELECT name, place, COALESCE(sum(completed + failed), 0)::int8, COALESCE(sum(failed), 0)::int8,
    (sum(wait_p95 * (completed + failed)) / NULLIF(sum(completed + failed) FILTER (WHERE wait_p95 >= 0), 0))::float8,
    (sum(run_p95 * (completed + failed)) / NULLIF(sum(completed + failed) FILTER (WHERE run_p95 >= 0), 0))::float8
FROM unnest(%s::text[]) AS name
    CROSS JOIN unnest(%s::timestamptz[], %s::timestamptz[]) WITH ORDINALITY AS span (since, until, place)
    LEFT JOIN queue_app_queuestats ON queue = name AND taken_at > since AND taken_at <= until
GROUP BY name, place ORDER BY name, place
"""

_ENDED: Final = """
SELECT queue, count(*) FILTER (WHERE status = 'completed'), count(*) FILTER (WHERE status IN ('failed', 'dead_letter'))
FROM queue_app_task WHERE finished_at >= statement_timestamp() - make_interval(secs => 60) GROUP BY queue
"""


class OfWindow(NamedTuple):
    """The tasks of one queue that ended in a window; ``place`` is its place among those asked for, from 1."""

    queue: str
    place: int
    total: int
    failed: int
    wait_p95: float | None
    run_p95: float | None


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


def of_windows(queues: Sequence[str], windows: Sequence[tuple[datetime, datetime]]) -> list[OfWindow]:
    """Return what ended in each queue in each window (after, up to), in this order, from the snapshots."""
    since, until = zip(*windows, strict=True)
    return [OfWindow(*row) for row in fetch_all(_WINDOWS, [list(queues), list(since), list(until)])]


def ended_lately() -> dict[str, tuple[int, int]]:
    """Return {queue: (completed, failed)} of the tasks that ended within the last 60 seconds."""
    return {queue: (completed, failed) for queue, completed, failed in fetch_all(_ENDED)}


# Count the tasks that ended in a window by task type, user or concurrency key, with histograms of their times.

#: One pass over the ended tasks; a group for the totals, and one for each bucket and version.
_ENDED_BY_TYPE: Final = """
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
    rows = fetch_together(
        WITHOUT_JIT, (_ENDED_BY_TYPE.format(column=column, unit=unit), [bounds, bounds, since, until])
    )
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


# Running and waiting tasks by type and key, to judge limits of these.

#: Number of waiting tasks that are read.
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


def waiting_by_kind() -> dict[tuple[str, str], tuple[float, float]]:
    """Return {(type, key): (waiting tasks, age of the oldest in seconds)} of the tasks that have waited longest."""
    return {(kind, key): (count, oldest) for kind, key, count, oldest in fetch_all(_WAITING_KINDS)}


def running_by_kind() -> dict[tuple[str, str], int]:
    """Return {(type, key): running tasks}."""
    return {(kind, key): count for kind, key, count in fetch_all(_RUNNING_KINDS)}
