"""Find schedules that have not run although they were due, and those whose tasks fail again and again."""

from typing import Final, NamedTuple

from queue_app.core.states import FAILURES
from queue_app.sql.database import fetch_all

#: A schedule is reported after these seconds without a run that was due, and after these failures in a row. The alert
#: rules have the same limits.
OVERDUE_SECONDS: Final = 60.0
MANY_FAILURES: Final = 3
#: Newest ticks of a schedule that a page shows, and most failures in a row that are counted.
RECENT: Final = 20
#: Newest ticks of a schedule among which those failures are sought: some wait, or were skipped.
SOUGHT: Final = 100

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
