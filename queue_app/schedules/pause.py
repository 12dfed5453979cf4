"""Pause and resume a schedule, and record the ticks that its pause passes over.

A pause passes over each tick that has no task when the pause begins, and each tick before its end. The end counts, not
the time at which a scheduler looks: the ticks may be recorded by the check of a paused schedule, by the first check
after the end, or by what ends or replaces the pause.

Crash points: the record and the next tick of the schedule are stored in the caller's transaction.
"""

import logging
from collections.abc import Collection
from datetime import datetime, timedelta
from functools import partial

from queue_app.core.counters import TICK
from queue_app.core.recurrence import Policy, jitter_of, plan
from queue_app.exceptions import ScheduleNotFound
from queue_app.models import Schedule
from queue_app.models.schedule import TickKind
from queue_app.schedules import sql as rows
from queue_app.schedules.sql import NewTick
from queue_app.services.control.pause import pause_row, resume_row
from queue_app.services.notify import events
from queue_app.sql.database import alias, atomic, call_on_commit, clock

_log = logging.getLogger("taskqueue")


def pause_schedule(name: str, *, by: str = "", reason: str = "", resume_at: datetime | None = None) -> Schedule:
    """Pause a schedule, like ``pause``; raise ``ScheduleNotFound``, or ``InvalidTaskData``."""
    return pause_row(lambda: lock_schedule(name), by, reason, resume_at)


def resume_schedule(name: str, *, now: datetime | None = None) -> Schedule:
    """Resume a schedule, which continues with its next tick; raise ``ScheduleNotFound``."""
    with atomic():
        return resume_row(lock_schedule(name), now)


def lock_schedule(name: str) -> Schedule:
    """Return a schedule and lock its row; raise ``ScheduleNotFound``."""
    found = Schedule.objects.using(alias()).select_for_update().filter(name=name).first()
    if found is None:
        raise ScheduleNotFound(f"There is no schedule {name!r}.")
    return found


def is_paused(schedule: Schedule, now: datetime) -> bool:
    """Return whether the pause of a schedule has not ended."""
    return schedule.paused and not (schedule.resume_at and schedule.resume_at <= now)


def passed_over(
    schedule: Schedule, now: datetime, recorded: Collection[datetime]
) -> tuple[NewTick | None, datetime | None]:
    """Return the record of the ticks that a pause has passed over up to ``now``, and the tick that follows them."""
    if schedule.next_instant is None:
        return None, None
    until = now if is_paused(schedule, now) else (schedule.resume_at or now) - timedelta(microseconds=1)

    def delay(instant: datetime) -> timedelta:
        return jitter_of(schedule.name, instant, schedule.jitter)

    missed, *_, following = plan(
        schedule.recurrence, schedule.next_instant, until, Policy(timedelta()), delay, recorded=recorded
    )
    if missed is None:
        return None, following
    by = f" by {schedule.paused_by}" if schedule.paused_by else ""
    why = f": {schedule.paused_reason}" if schedule.paused_reason else "."
    late = max(0.0, (now - missed.last - delay(missed.last)).total_seconds())
    reason = f"The schedule was paused{by}{why}"
    tick = NewTick(schedule.pk, missed.last, TickKind.DUE, now, late, None, reason, missed.first, missed.number)
    return tick, following


def settle_if_paused(row: object, now: datetime | None = None) -> None:
    """Settle the pause of a row if it is a schedule's; the kernel calls this for every row that can be paused."""
    if isinstance(row, Schedule):
        settle_pause(row, now or clock())


def settle_pause(schedule: Schedule, now: datetime) -> None:
    """Record what the pause of a locked schedule has passed over, before the pause ends or another replaces it."""
    recorded = rows.recorded_ahead([schedule.pk])[schedule.pk]
    try:
        tick, schedule.next_instant = passed_over(schedule, now, recorded)
    except Exception:  # noqa: BLE001 - such as a zone that this machine does not know
        _log.exception("the ticks that the pause of the schedule %s passed over cannot be recorded", schedule)
        return
    schedule.due_at = schedule.next_instant if schedule.held_instant is None else now
    rows.move_on([(schedule.pk, schedule.next_instant, schedule.held_instant, schedule.due_at)])
    if tick is not None:
        rows.record_passed(tick)
        call_on_commit(partial(events.count, {f"{TICK}:skipped": tick.number}))
