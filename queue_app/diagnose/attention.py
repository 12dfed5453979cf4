"""Checks of what only a person can mend: schedules, workflows, dead letters, suggestions."""

from collections.abc import Iterator
from typing import Final

from queue_app.core.finding import Finding, Level, fail, ok, warn
from queue_app.models import Schedule
from queue_app.services.control.advice import advice
from queue_app.sql import doctor, schedule_health, workflow_health
from queue_app.sql.schedule_health import MANY_FAILURES, OVERDUE_SECONDS

#: Maximum number of schedules, workflows or causes of death that a finding names.
NAMED: Final = 5
#: Seconds for which a workflow may be held before it is reported; the alert rule has the same limit.
HELD_SECONDS: Final = 3600.0
DEATHS_PER_MINUTE: Final = 10
DEATH_WINDOW: Final = 300.0


def check_schedules() -> Iterator[Finding]:
    """Report schedules that were due and have not run, and schedules whose tasks keep failing."""
    overdue, failing = schedule_health.overdue(OVERDUE_SECONDS), schedule_health.failing(MANY_FAILURES)
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


def check_workflows() -> Iterator[Finding]:
    """Report workflows that a failed task has held for an hour."""
    held = workflow_health.held(NAMED, seconds=HELD_SECONDS)
    if not held:
        yield ok("workflows", "none has been held for an hour")
        return
    named = "; ".join(f"{each.name} {each.id} for {each.seconds:,.0f} s{_by(each)}" for each in held)
    yield warn(
        "workflows",
        f"{held[0].number:,} held for more than an hour: {named}",
        "Mend the cause, then run `manage.py taskqueue workflow retry ID`; or discard the dead letter in the admin.",
    )


def _by(held: workflow_health.HeldWorkflow) -> str:
    return f" by {held.task} ({held.status.replace('_', ' ')})" if held.task else ""


def check_advice() -> Iterator[Finding]:
    """Suggest changes, at most three; none is a problem by itself."""
    for each in advice():
        yield Finding("advice", Level.OK, each.text, each.hint)


def check_deaths() -> Iterator[Finding]:
    """Report a high rate of deaths."""
    found = doctor.deaths(DEATH_WINDOW)
    deaths, minutes = sum(each.number for each in found), DEATH_WINDOW / 60
    named = ", ".join(f"{each.task_type} ({each.cause}) {each.number:,}" for each in found[:NAMED])
    within = f"within the last {minutes:.0f} minutes" + (f": {named}" if named else "")
    if deaths / minutes > DEATHS_PER_MINUTE:
        hint = "See their errors in the admin, pause the queue or type, fix the cause, then replay."
        yield warn("dead letters", f"{deaths:,} tasks died {within}", hint)
    else:
        yield ok("dead letters", f"{deaths:,} {within}")
