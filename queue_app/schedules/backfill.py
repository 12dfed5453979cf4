"""Let a schedule tick on request: now, or for a range of the past (or future) by an operation, the backfill.

Instants that have a task already are left alone, also those of another backfill. The overlap policy does not apply:
the caller wants each of these tasks.
"""

import uuid
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from itertools import islice, takewhile
from typing import Final

from queue_app.core.parsing import check_range
from queue_app.core.records import TaskRow
from queue_app.core.recurrence import Recurrence
from queue_app.exceptions import InvalidTaskData, ScheduleNotFound, TaskQueueError
from queue_app.models import Operation, Schedule, ScheduleTick
from queue_app.models.fields import USER_LENGTH
from queue_app.models.operation import OperationKind, OperationTarget
from queue_app.models.schedule import TickKind
from queue_app.schedules.pause import lock_schedule
from queue_app.schedules.sql import NewTick
from queue_app.schedules.tick import store, task_of
from queue_app.services.enqueue.validate import check_aware, check_reason
from queue_app.services.operations.request import OperationOptions, check_options, store_operation
from queue_app.sql.database import alias, atomic, clock

MAX_INSTANTS: Final = 10_000


def preview_backfill(schedule: Schedule, start: datetime, end: datetime) -> list[datetime]:
    """Return the instants from ``start`` up to, but not including, ``end`` that have no task yet.

    Raises ``InvalidTaskData`` for a range that is not one, or has too many instants.
    """
    check_aware(start, "start")
    if check_aware(end, "end") <= start:
        raise InvalidTaskData("end", "end must be after start.", code="out_of_range")
    check_range("start", start)
    check_range("end", end)
    instants = list(islice(_instants(schedule.recurrence, start, end), MAX_INSTANTS + 1))
    if len(instants) > MAX_INSTANTS:
        message = f"One backfill makes at most {MAX_INSTANTS} tasks, and this range has more; choose a shorter one."
        raise InvalidTaskData("end", message, code="out_of_range", limit=MAX_INSTANTS)
    return _unfilled(schedule, start, end, instants)


def start_backfill(  # noqa: PLR0913 - by name
    name: str, start: datetime, end: datetime, options: OperationOptions | None = None, *, by: str, reason: str = ""
) -> Operation:
    """Request a backfill; return its operation. Raises ``ScheduleNotFound`` and ``InvalidTaskData``."""
    options = options or OperationOptions()
    check_options(options)
    schedule = Schedule.objects.using(alias()).filter(name=name).first()
    if schedule is None:
        raise ScheduleNotFound(f"There is no schedule {name!r}.")
    instants = preview_backfill(schedule, start, end)
    return store_operation(
        replace(options, stop_after_failures=0),
        kind=OperationKind.BACKFILL,
        target=OperationTarget.TICKS,
        filter={"schedule": name, "start": start.isoformat(), "end": end.isoformat()},
        by=by[:USER_LENGTH],
        reason=check_reason(reason),
        total=min(len(instants), options.limit or len(instants)),
    )


def next_instants(operation: Operation, count: int) -> list[tuple[uuid.UUID, datetime]]:
    """Return (no id, instant) of the next instants of a backfill; none if its schedule is gone."""
    schedule = _schedule_of(operation)
    if schedule is None:
        return []
    start, end = (datetime.fromisoformat(operation.filter[name]) for name in ("start", "end"))
    if operation.after_died_at is not None:
        start = operation.after_died_at + timedelta(microseconds=1)
    # Without the checks of the request: an edit may have made the schedule denser meanwhile.
    left = _unfilled(schedule, start, end, islice(_instants(schedule.recurrence, start, end), MAX_INSTANTS))
    return [(uuid.UUID(int=0), instant) for instant in left[:count]]


def fill_page(operation: Operation, page: Sequence[tuple[uuid.UUID, datetime]]) -> list[uuid.UUID]:
    """Enqueue the tasks of a page of ``next_instants``; return the ids of the stored ones."""
    return fill(operation, [instant for _no_id, instant in page])


def fill(operation: Operation, instants: Sequence[datetime]) -> list[uuid.UUID]:
    """Enqueue the tasks of these instants; return the ids of the stored ones."""
    schedule = _schedule_of(operation)
    if schedule is None:
        return []
    now = clock()
    why = f"Backfilled by {operation.by}." if operation.by else "Backfilled."
    tasks: list[TaskRow] = []
    ticks: list[NewTick] = []
    for instant in instants:
        try:
            task = task_of(schedule, instant)
        except TaskQueueError as error:  # a limit of the project may be lower by now
            reason = f"The task was refused: {error}"
            ticks.append(NewTick(schedule.pk, instant, TickKind.BACKFILL, now, reason=reason))
        else:
            tasks.append(task)
            ticks.append(NewTick(schedule.pk, instant, TickKind.BACKFILL, now, 0.0, task.id, why))
    refused = store(ticks, {task.id: task for task in tasks})
    return [task.id for task in tasks if task.id not in refused]


def _unfilled(schedule: Schedule, start: datetime, end: datetime, instants: Iterable[datetime]) -> list[datetime]:
    ticks = ScheduleTick.objects.using(alias()).filter(schedule_id=schedule.pk, task_id__isnull=False)
    filled = set(ticks.filter(instant__gte=start, instant__lt=end).values_list("instant", flat=True))
    return [instant for instant in instants if instant not in filled]


def _instants(recurrence: Recurrence, start: datetime, end: datetime) -> Iterator[datetime]:
    after = recurrence.instants_after(start - timedelta(microseconds=1))
    return takewhile(lambda instant: instant < end, after)


def _schedule_of(operation: Operation) -> Schedule | None:
    return Schedule.objects.using(alias()).select_for_update().filter(name=operation.filter["schedule"]).first()


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
