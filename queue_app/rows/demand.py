"""Read what an autoscaler has to know of the rows; the cost depends on what runs, not on what waits."""

from __future__ import annotations

from typing import NamedTuple

from queue_app.rows.database import fetch_all

#: Of the tasks that ended last, so many are looked at for run times.
SAMPLE = 2000


class Active(NamedTuple):
    """Executing tasks of one kind."""

    queue: str
    task_type: str
    key: str
    user: str
    tasks: int
    slots: int


def active() -> list[Active]:
    """Return what executes, by what caps count."""
    found = fetch_all(
        'SELECT queue, task_type, concurrency_key, "user", count(*), sum(weight) FROM queue_app_task'
        " WHERE status = 'executing' GROUP BY 1, 2, 3, 4"
    )
    return [Active(*row) for row in found]


def mean_seconds(queue: str) -> float | None:
    """Return the mean run time of those tasks of the queue that ended last; ``None`` when none did."""
    found = fetch_all(
        "SELECT avg(EXTRACT(EPOCH FROM finished_at - started_at))::float8 FROM (SELECT queue, started_at, finished_at"
        " FROM queue_app_task WHERE finished_at IS NOT NULL ORDER BY finished_at DESC LIMIT %s) AS ended"
        " WHERE queue = %s AND started_at IS NOT NULL",
        [SAMPLE, queue],
    )
    return None if found[0][0] is None else float(found[0][0])
