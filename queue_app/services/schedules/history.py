"""What became of the ticks of schedules."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import takewhile

from queue_app.core.states import FAILURES, Status
from queue_app.models import Schedule, ScheduleTick, Task
from queue_app.sql import schedules as rows
from queue_app.sql.database import alias
from queue_app.sql.schedule_health import RECENT


@dataclass(frozen=True, slots=True)
class RecentTick:
    """A tick with the present state of its task."""

    tick: ScheduleTick
    status: str | None  # of the task; None: it has none, or its row was deleted before it ended

    @property
    def has_failed(self) -> bool:
        return self.status in FAILURES


def recent(schedules: Sequence[Schedule], count: int = RECENT) -> dict[int, list[RecentTick]]:
    """Return {schedule: its newest ticks, newest first}, with the states of their tasks."""
    found: dict[int, list[RecentTick]] = {schedule.pk: [] for schedule in schedules}
    for each in with_status(rows.newest(list(found), count)):
        found[each.tick.schedule_id].append(each)
    return found


def with_status(ticks: Sequence[ScheduleTick]) -> list[RecentTick]:
    """Return ticks with the states of their tasks, in the same order."""
    open_ids = [tick.task_id for tick in ticks if tick.task_id and tick.outcome is None]
    statuses = dict(Task.objects.using(alias()).filter(id__in=open_ids).values_list("id", "status"))
    return [RecentTick(tick, tick.outcome or (statuses.get(tick.task_id) if tick.task_id else None)) for tick in ticks]


def failures_in_a_row(ticks: Sequence[RecentTick]) -> int:
    """Return how many of the newest ticks have failed one after the other, at most ``RECENT``.

    Pending tasks and skipped ticks do not count. So that they do not hide failures, pass the newest ``SOUGHT`` ticks.
    """
    since_success = takewhile(lambda each: each.status != Status.COMPLETED, ticks)
    return min(RECENT, sum(each.has_failed for each in since_success))


def last_success(ticks: Sequence[RecentTick]) -> datetime | None:
    """Return the instant of the newest tick whose task has completed."""
    return next((each.tick.instant for each in ticks if each.status == Status.COMPLETED), None)
