"""Read for metrics and checks what only the rows know; each statement is cheap whatever the number of tasks."""

from __future__ import annotations

from dataclasses import dataclass

from queue_app.rows.database import fetch_all


@dataclass(frozen=True, slots=True)
class RowFigures:
    """Workers by status and their slots, pauses, jobs of upkeep and the generation, by the database's clock."""

    workers: dict[str, int]
    slots: int  # of workers that take tasks
    paused: dict[str, bool]  # queue -> whether it starts nothing, by itself or with all others
    job_ages: dict[str, float]  # job -> seconds since its last success
    generation: int
    rebuild_seconds: float | None  # the last rebuild, or how long the one under way has taken so far
    rebuilding: bool


def read() -> RowFigures:
    """Return the figures."""
    workers = fetch_all("SELECT status, count(*), sum(concurrency) FROM queue_app_worker GROUP BY status")
    paused = fetch_all("SELECT name, paused FROM queue_app_queue")
    overall = fetch_all("SELECT COALESCE((SELECT paused FROM queue_app_runtimesettings WHERE id = 1), false)")
    jobs = fetch_all(
        "SELECT name, EXTRACT(EPOCH FROM clock_timestamp() - succeeded_at)::float8 FROM queue_app_maintenancejob"
        " WHERE succeeded_at IS NOT NULL"
    )
    generation = fetch_all(
        "SELECT number, EXTRACT(EPOCH FROM COALESCE(ready_at, clock_timestamp()) - started_at)::float8,"
        " ready_at IS NULL FROM queue_app_indexgeneration WHERE id = 1"
    )
    number, seconds, rebuilding = generation[0] if generation else (0, None, False)
    return RowFigures(
        workers={status: count for status, count, _ in workers},
        slots=sum(int(slots or 0) for status, _, slots in workers if status == "active"),
        paused={name: bool(overall[0][0] or is_paused) for name, is_paused in paused},
        job_ages={name: max(0.0, age) for name, age in jobs},
        generation=int(number),
        rebuild_seconds=seconds,
        rebuilding=bool(rebuilding),
    )
