"""Check of the schedules."""

from collections.abc import Iterator
from typing import Final

from queue_app.core.finding import Finding, fail, ok, warn
from queue_app.models import Schedule
from queue_app.sql import schedule_health as rows
from queue_app.sql.schedule_health import MANY_FAILURES, OVERDUE_SECONDS

#: Maximum number of schedules that a finding names.
NAMED: Final = 5


def check_schedules() -> Iterator[Finding]:
    """Report schedules that have not run although they were due, and those whose tasks fail again and again."""
    overdue, failing = rows.overdue(OVERDUE_SECONDS), rows.failing(MANY_FAILURES)
    if overdue:
        named = ", ".join(f"{each.name} for {each.seconds:,.0f} s" for each in overdue[:NAMED])
        yield fail(
            "schedules",
            f"{len(overdue):,} due and not run: {named}",
            "Start `manage.py runscheduler`; if one leads, see its log for the names. Missed ticks are caught up.",
        )
    if failing:
        named = ", ".join(f"{each.name} ({each.times} times)" for each in failing[:NAMED])
        hint = "See the schedule's page in the admin for the reasons; pause the schedule, or mend its task."
        yield warn("schedules", f"{len(failing):,} failed {MANY_FAILURES} times in a row or more: {named}", hint)
    if not (overdue or failing):
        yield ok("schedules", f"{Schedule.objects.filter(due_at__isnull=False).count():,} tick, none is late or fails")
