"""Run a schedule now, on request."""

from datetime import datetime

from queue_app.exceptions import InvalidTaskData
from queue_app.models import ScheduleTick
from queue_app.models.schedule import TickKind
from queue_app.services.control.pause import lock_schedule
from queue_app.services.schedules.tick import store, task_of
from queue_app.sql.database import alias, atomic, clock
from queue_app.sql.schedules import NewTick


def run_schedule(name: str, *, by: str = "", now: datetime | None = None) -> ScheduleTick:
    """Enqueue the task of a schedule now, even if it is paused or overlaps; return the tick.

    The next tick stays where it is. Raises ``ScheduleNotFound``, and ``InvalidTaskData`` if the task is refused.
    """
    with atomic():
        schedule = lock_schedule(name)
        at = now or clock()
        task = task_of(schedule, at)
        tick = NewTick(
            schedule.pk, at, TickKind.MANUAL, at, 0.0, task.id, f"{by} ran it." if by else "It was run by hand."
        )
        refused = store([tick], {task.id: task})
        if refused:
            raise InvalidTaskData("name", refused[task.id])
    return ScheduleTick.objects.using(alias()).get(schedule_id=schedule.pk, instant=at)
