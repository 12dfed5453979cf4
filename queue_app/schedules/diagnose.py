"""What is wrong with schedules, and which tick a task is of: for ``explain``, the doctor, the overview and metrics."""

from collections.abc import Iterable, Iterator
from typing import Final

from queue_app import conf
from queue_app.core.reasons import Finding, Level, Reason, moment, ok, reason, warn
from queue_app.core.sentence import age, joined, sentence, sentence_n
from queue_app.diagnose.explain import Case
from queue_app.diagnose.live import OverviewPart
from queue_app.diagnose.overview import NAMED, Link, OverviewReason
from queue_app.metrics.exposition import OTHER
from queue_app.models import Schedule, ScheduleTick
from queue_app.schedules import sql as schedules
from queue_app.schedules.sql import MANY_FAILURES, OVERDUE_SECONDS, Failing, Overdue
from queue_app.sql.database import alias


def of_tick(case: Case) -> Iterator[Reason]:
    """Yield the tick whose task it is."""
    tick = ScheduleTick.objects.using(alias()).filter(task_id=case.task.id).select_related("schedule").first()
    if tick is not None:
        details = {"schedule": tick.schedule.name, "instant": tick.instant, "kind": tick.kind}
        yield reason("schedule", time=moment(tick.instant), name=tick.schedule.name, details=details)


def schedule_troubles(overdue: Iterable[Overdue], failing: Iterable[Failing]) -> Iterator[Reason]:
    """Yield which schedules have not run, or fail again and again."""
    for late in overdue:
        yield reason("schedule_late", name=late.name, time=age(late.seconds))
    for each in failing:
        yield reason("schedule_failing", name=each.name, count=each.times)


def check_schedules() -> Iterator[Finding]:
    """Report schedules that were due and have not run, and schedules whose tasks keep failing."""
    found = list(schedule_troubles(schedules.overdue(OVERDUE_SECONDS), schedules.failing(MANY_FAILURES)))
    for each in found[:NAMED]:
        yield Finding("schedules", each.kind.level, each.text, each.remedy)
    if more := len(found[NAMED:]):
        yield warn("schedules", f"{more:,} more are late or fail", "See the list of schedules in the admin.")
    if not found:
        yield ok("schedules", f"{Schedule.objects.filter(due_at__isnull=False).count():,} tick, none is late or fails")


def _read() -> tuple[list[Overdue], list[Failing]]:
    return schedules.overdue(OVERDUE_SECONDS), schedules.failing(MANY_FAILURES)


def _in_banner(found: tuple[list[Overdue], list[Failing]]) -> list[OverviewReason]:
    """Return which schedules have not run, or fail again and again."""
    overdue, failing = found
    shown = list(schedule_troubles(overdue[:NAMED], failing[:NAMED]))
    texts = [(joined(each.text, each.remedy), each.kind.level is Level.FAIL) for each in shown]
    if more := len(overdue[NAMED:]) + len(failing[NAMED:]):
        texts.append(
            (sentence_n("%(n)s more schedule is late or fails.", "%(n)s more schedules are late or fail.", more), False)
        )
    see = (Link(sentence("Schedules"), "schedule_changelist", "queue_app.view_schedule"),)
    return [OverviewReason(text, severe=severe, links=see) for text, severe in texts]


LATE: Final = OverviewPart("queue_app.view_schedule", _read, _in_banner)


def metrics() -> dict[str, dict[tuple[str, ...], float]]:
    """Return how late schedules are, and how often those that fail have failed in a row."""
    overdue, most = schedules.overdue(0), conf.get().metrics.max_queues
    failing = [(name if place < most else OTHER, count) for place, (name, count) in enumerate(schedules.failing(1))]
    return {
        "schedule_overdue_seconds": {(): overdue[0].seconds if overdue else 0.0},
        # Of schedules that share a label, the first one fails most.
        "schedule_failures_in_a_row": {(label,): count for label, count in reversed(failing)},
    }
