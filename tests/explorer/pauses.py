"""The end of a schedule's pause, whoever comes first: a scheduler that lets it tick, or what ends the pause.

``paused``: a schedule that catches up on all ticks was paused until half past two minutes after noon, and no scheduler
ran until four minutes after it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from queue_app.models import Schedule, ScheduleTick
from queue_app.schedules.edit import create_schedule, update_schedule
from queue_app.schedules.pause import pause_schedule, resume_schedule
from queue_app.schedules.tick import run_due
from queue_app.services.control.pause import resume_due
from tests.support.asking import TYPE

STATE: Final = "paused"
#: When the schedule of a state began.
NOON: Final = datetime(2026, 1, 1, 12, tzinfo=UTC)
NAME: Final = "paused"


def minutes(number: float) -> datetime:
    """Return a time after noon."""
    return NOON + timedelta(minutes=number)


def make() -> None:
    """Store the schedule."""
    create_schedule(NAME, {"task_type": TYPE, "every": 60, "catch_up": "all"}, now=NOON)
    pause_schedule(NAME, by="ina")
    Schedule.objects.update(resume_at=minutes(2.5))


def tick() -> int:
    """Let the schedule tick, late."""
    return run_due(now=minutes(4))


def go_on() -> None:
    """Do what the scheduler does."""
    resume_due()
    tick()


def broken() -> Iterator[str]:
    """Yield what became of a tick that it should not."""
    ticks = ScheduleTick.objects.order_by("instant").values_list("instant", "count", "task_id")
    found = [((instant - NOON) // timedelta(minutes=1), count, task is not None) for instant, count, task in ticks]
    if found != [(2, 2, False), (3, 1, True), (4, 1, True)]:
        yield f"a pause of two minutes left these ticks (minute, number, has a task): {found}"


#: Name -> what it does, in which states.
PAUSES: Final[dict[str, tuple[Callable[[Any, int], Any], tuple[str, ...]]]] = {
    "tick_late": (lambda _world, _: tick(), (STATE,)),
    "end_pause": (lambda _world, _: resume_due(), (STATE,)),
    "resume_schedule": (lambda _world, _: resume_schedule(NAME, now=minutes(4)), (STATE,)),
    "edit_times": (lambda _world, _: update_schedule(NAME, {"ends_at": minutes(4.5)}, now=minutes(4)), (STATE,)),
}
