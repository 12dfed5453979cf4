"""Numbers for metrics and autoscaling that only PostgreSQL has. The cost does not grow with the number of tasks."""

import math
from collections import Counter
from dataclasses import dataclass
from typing import Final, NamedTuple

from queue_app.sql import schedule_health, workflow_health
from queue_app.sql.adaptive import Adaptive, adaptive
from queue_app.sql.database import fetch_all, fetch_value, is_read_only
from queue_app.sql.schedule_health import Failing
from queue_app.sql.watchdog import CHECK_IS_OLD, WATCHDOG


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
    schedule_overdue: float  # seconds since the schedule was due that waits longest; 0: none waits
    schedules_failing: list[Failing]  # those that fail most first
    workflows: dict[str, int]  # state -> stored workflows, estimated where there are many
    workflows_held: tuple[int, float]  # number, and seconds for which the longest has been held
    adaptive: list[Adaptive]
    generation: int
    rebuild_seconds: float | None  # duration of the last rebuild, or of the current one so far
    rebuilding: bool
    is_read_only: bool  # whether the server refuses writes, like a standby


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
    overdue = schedule_health.overdue(0)
    held = workflow_health.held(1)
    generation = fetch_all(
        "SELECT number, EXTRACT(EPOCH FROM COALESCE(ready_at, clock_timestamp()) - started_at)::float8,"
        " ready_at IS NULL FROM queue_app_indexgeneration WHERE id = 1"
    )
    number, seconds, rebuilding = generation[0] if generation else (0, None, False)
    return RowStats(
        states=states(),
        waits=waits(),
        workers={status: count for status, count, _ in workers},
        slots=sum(int(slots or 0) for status, _, slots in workers if status == "active"),
        paused={name: bool(is_all_paused or is_paused) for name, is_paused in paused},
        job_ages=ages,
        stalled=Counter(kind for _, _, kinds in jobs for kind in kinds),
        is_watched=check_age <= CHECK_IS_OLD,
        schedule_overdue=overdue[0].seconds if overdue else 0.0,
        schedules_failing=schedule_health.failing(1),
        workflows=counts_of("queue_app_workflow", "state"),
        workflows_held=(held[0].number, held[0].seconds) if held else (0, 0.0),
        adaptive=adaptive(),
        generation=int(number),
        rebuild_seconds=seconds,
        rebuilding=bool(rebuilding),
        is_read_only=is_read_only(),
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
