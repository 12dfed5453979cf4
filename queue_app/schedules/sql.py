"""Statements on schedules and their ticks."""

import uuid
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Final, NamedTuple

from queue_app.core.states import FAILURES, PENDING
from queue_app.models import ScheduleTick
from queue_app.sql.database import alias, columns_of, execute, fetch_all, fetch_value

#: Newest ticks of a schedule whose ended tasks are looked at: ``copy_outcomes`` and ``reopen`` may have met.
_LOOKED_AT: Final = 100

_PENDING: Final = ", ".join(f"'{status}'" for status in sorted(PENDING))
_LIVE: Final = f"""
SELECT tick.schedule_id, t.id, t.status
FROM unnest(%s::bigint[]) AS wanted (id) CROSS JOIN LATERAL (
    SELECT schedule_id, task_id FROM queue_app_scheduletick
    WHERE schedule_id = wanted.id AND task_id IS NOT NULL AND outcome IS NULL
    UNION
    SELECT schedule_id, task_id FROM (
        SELECT schedule_id, task_id, outcome FROM queue_app_scheduletick
        WHERE schedule_id = wanted.id ORDER BY instant DESC LIMIT {_LOOKED_AT}
    ) AS newest WHERE outcome IN ('cancelled', 'dead_letter', 'expired', 'failed')
) AS tick JOIN queue_app_task AS t ON t.id = tick.task_id
WHERE t.status IN ({_PENDING}) ORDER BY t.id
"""

# A tick that was recorded without a task may get one later: one that waited, or by a backfill.
_RECORD: Final = """
INSERT INTO queue_app_scheduletick AS tick
    (schedule_id, instant, kind, at, late_seconds, task_id, reason, first_instant, count, outcome)
SELECT * FROM unnest(%s::bigint[], %s::timestamptz[], %s::text[], %s::timestamptz[], %s::float8[], %s::uuid[],
    %s::text[], %s::timestamptz[], %s::int[], %s::text[])
ON CONFLICT (schedule_id, instant) DO UPDATE
    SET kind = EXCLUDED.kind, at = EXCLUDED.at, late_seconds = EXCLUDED.late_seconds, task_id = EXCLUDED.task_id,
        reason = CASE WHEN tick.count = 1 THEN EXCLUDED.reason ELSE
            format('%%s The ticks before it: %%s', EXCLUDED.reason, tick.reason) END, outcome = NULL
    WHERE tick.task_id IS NULL AND EXCLUDED.task_id IS NOT NULL
RETURNING schedule_id, instant
"""

# A backfill may be ahead of the ticks.
_RECORDED_AHEAD: Final = """
SELECT tick.schedule_id, tick.instant
FROM queue_app_schedule AS s JOIN queue_app_scheduletick AS tick
    ON tick.schedule_id = s.id AND tick.instant >= s.next_instant
WHERE s.id = ANY(%s)
"""

_EXTEND: Final = """
UPDATE queue_app_scheduletick SET first_instant = COALESCE(first_instant, instant), instant = %s, at = %s,
    late_seconds = %s, count = count + %s
WHERE task_id IS NULL AND id = (
    SELECT id FROM queue_app_scheduletick WHERE schedule_id = %s ORDER BY instant DESC LIMIT 1
) AND reason = %s
"""

_MOVE_ON: Final = """
UPDATE queue_app_schedule AS s
SET next_instant = moved.next_instant, held_instant = moved.held_instant, due_at = moved.due_at
FROM unnest(%s::bigint[], %s::timestamptz[], %s::timestamptz[], %s::timestamptz[])
    AS moved (id, next_instant, held_instant, due_at)
WHERE s.id = moved.id
"""

_COPY_OUTCOMES: Final = """
UPDATE queue_app_scheduletick AS tick
SET outcome = t.status, run_seconds = EXTRACT(EPOCH FROM t.finished_at - t.started_at)
FROM (
    SELECT tick.id, task.status, task.started_at, task.finished_at
    FROM queue_app_scheduletick AS tick JOIN queue_app_task AS task ON task.id = tick.task_id
    WHERE tick.task_id IS NOT NULL AND tick.outcome IS NULL AND task.finished_at IS NOT NULL
    ORDER BY tick.id LIMIT 5000 FOR UPDATE OF tick SKIP LOCKED
) AS t WHERE tick.id = t.id
"""


class NewTick(NamedTuple):
    """A row of ``ScheduleTick`` to be stored."""

    schedule_id: int
    instant: datetime
    kind: str
    at: datetime
    late_seconds: float = 0.0
    task_id: uuid.UUID | None = None
    reason: str = ""
    first_instant: datetime | None = None
    number: int = 1  # of consecutive ticks that it stands for
    outcome: str | None = None  # "failed" if the task was refused


def are_installed() -> bool:
    """Return whether the database has the tables."""
    return fetch_value("SELECT to_regclass('queue_app_scheduletick')") is not None


def live_tasks(schedule_ids: Sequence[int]) -> dict[int, list[tuple[uuid.UUID, str]]]:
    """Return {schedule: [(id, status) of its pending tasks, oldest first]}."""
    found: dict[int, list[tuple[uuid.UUID, str]]] = {}
    if schedule_ids:
        for schedule_id, task_id, status in fetch_all(_LIVE, [list(schedule_ids)]):
            found.setdefault(schedule_id, []).append((task_id, status))
    return found


def recorded_ahead(schedule_ids: Sequence[int]) -> dict[int, set[datetime]]:
    """Return {schedule: its instants from the next one on that are recorded already}."""
    found: dict[int, set[datetime]] = {schedule_id: set() for schedule_id in schedule_ids}
    for schedule_id, instant in fetch_all(_RECORDED_AHEAD, [list(schedule_ids)]):
        found[schedule_id].add(instant)
    return found


def record(ticks: Sequence[NewTick]) -> set[tuple[int, datetime]]:
    """Store ticks; return (schedule, instant) of the ticks that are new, or had no task before."""
    if not ticks:
        return set()
    return {
        (schedule_id, instant) for schedule_id, instant in fetch_all(_RECORD, columns_of(ticks, len(NewTick._fields)))
    }


def record_passed(tick: NewTick) -> None:
    """Store ticks without a task; add them to the newest record of their schedule if that has the same reason."""
    values = [tick.instant, tick.at, tick.late_seconds, tick.number, tick.schedule_id, tick.reason]
    if not execute(_EXTEND, values):
        record([tick])


def give_up(ticks: Iterable[tuple[int, datetime, str]]) -> None:
    """Take the task from ticks that were recorded with one, write the reason, and count them as failed."""
    for schedule_id, instant, reason in ticks:
        execute(
            "UPDATE queue_app_scheduletick SET task_id = NULL, outcome = 'failed', reason = %s"
            " WHERE schedule_id = %s AND instant = %s",
            [reason, schedule_id, instant],
        )


def reopen(task_ids: Sequence[uuid.UUID]) -> None:
    """Let the ticks of tasks that are queued again count as open."""
    sql = "UPDATE queue_app_scheduletick SET outcome = NULL, run_seconds = NULL WHERE task_id = ANY(%s)"
    execute(f"{sql} AND outcome IS NOT NULL", [list(task_ids)])


def move_on(rows: Sequence[tuple[int, datetime | None, datetime | None, datetime | None]]) -> None:
    """Set (id, next instant, held instant, time of the next check) of schedules."""
    execute(_MOVE_ON, columns_of(rows, 4))


def copy_outcomes() -> int:
    """Copy the outcomes of ended tasks to their ticks, before the tasks are deleted; return how many."""
    return execute(_COPY_OUTCOMES)


def newest(schedule_ids: Sequence[int], count: int) -> list[ScheduleTick]:
    """Return the newest ticks of each schedule, newest first."""
    sql = """
        SELECT tick.* FROM unnest(%s::bigint[]) AS wanted (id) CROSS JOIN LATERAL (
            SELECT * FROM queue_app_scheduletick WHERE schedule_id = wanted.id ORDER BY instant DESC LIMIT %s
        ) AS tick ORDER BY tick.schedule_id, tick.instant DESC
    """
    return list(ScheduleTick.objects.using(alias()).raw(sql, [list(schedule_ids), count]))


# Find schedules that have not run although they were due, and those whose tasks fail again and again.

#: A schedule is reported after these seconds without a run that was due, and after these failures in a row. The alert
#: rules have the same limits.
OVERDUE_SECONDS: Final = 60.0
MANY_FAILURES: Final = 3
#: Newest ticks of a schedule that a page shows, and most failures in a row that are counted.
RECENT: Final = 20
#: Newest ticks of a schedule among which those failures are sought: some wait, or were skipped.
SOUGHT: Final = 100

#: For ``pending_work``; null: none ticks.
SECONDS_UNTIL_DUE: Final = (
    "(SELECT EXTRACT(EPOCH FROM min(due_at) - statement_timestamp())::float8 FROM queue_app_schedule)"
)

# A schedule at which a scheduler has looked in vain is put off: then only the instant tells how late it is.
_OVERDUE: Final = """
SELECT name, EXTRACT(EPOCH FROM statement_timestamp() - since)::float8 FROM (
    SELECT name, LEAST(due_at, next_instant + make_interval(secs => jitter)) AS since
    FROM queue_app_schedule
    WHERE due_at IS NOT NULL AND NOT (paused AND COALESCE(resume_at, 'infinity') > statement_timestamp())
) AS due WHERE since < statement_timestamp() - make_interval(secs => %s) ORDER BY since
"""
_FAILED: Final = f"outcome IN ({', '.join(f"'{status}'" for status in sorted(FAILURES))})"
# The index of failed ticks names the few schedules whose newest ticks are read.
_FAILING: Final = f"""
SELECT s.name, streak.failures
FROM (SELECT DISTINCT schedule_id FROM queue_app_scheduletick WHERE {_FAILED}) AS suspect
JOIN queue_app_schedule AS s ON s.id = suspect.schedule_id
CROSS JOIN LATERAL (
    SELECT least(count(*), {RECENT})::int AS failures FROM (
        SELECT outcome, count(*) FILTER (WHERE outcome = 'completed') OVER (ORDER BY instant DESC) AS completed FROM (
            SELECT newest.instant, COALESCE(newest.outcome, task.status) AS outcome FROM (
                SELECT instant, outcome, task_id FROM queue_app_scheduletick
                WHERE schedule_id = s.id ORDER BY instant DESC LIMIT {SOUGHT}
            ) AS newest LEFT JOIN queue_app_task AS task ON newest.outcome IS NULL AND task.id = newest.task_id
        ) AS known
    ) AS tick WHERE completed = 0 AND {_FAILED}
) AS streak
WHERE s.due_at IS NOT NULL AND NOT s.paused AND streak.failures >= %s ORDER BY streak.failures DESC, s.name
"""


class Overdue(NamedTuple):
    """A schedule that no scheduler has handled although it was due, and since when, in seconds."""

    name: str
    seconds: float


class Failing(NamedTuple):
    """A schedule, and how many of its newest ticks have failed one after the other; at most ``RECENT`` are counted."""

    name: str
    failures: int

    @property
    def times(self) -> str:
        """The number of failures in a row for people."""
        return times(self.failures)


def times(failures: int) -> str:
    """Return a number of failures in a row for people: ``20+`` where counting stopped."""
    return f"{RECENT}+" if failures >= RECENT else str(failures)


def overdue(seconds: float) -> list[Overdue]:
    """Return the schedules that have been due for longer, the longest first."""
    return [Overdue(*row) for row in fetch_all(_OVERDUE, [seconds])]


def failing(least: int) -> list[Failing]:
    """Return the schedules with at least ``least`` failures in a row; one is found once the upkeep has copied one."""
    return [Failing(*row) for row in fetch_all(_FAILING, [least])]
