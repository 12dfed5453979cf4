"""Let schedules tick: enqueue the task of every instant that has come, exactly once.

One transaction locks the schedules that are due, records each tick, stores its task, and moves the schedule on. Two
processes never hold the same schedule, because the second one skips locked rows; and a tick that is recorded, by an
earlier run or a backfill, is never recorded again.

Crash points: before the commit nothing has happened, and the next check repeats it. After the commit the tasks are
queued rows like any other: the reconciler pushes those that the index lacks.
"""

import logging
import uuid
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import partial
from itertools import takewhile
from typing import Final

from django.db import DataError, IntegrityError

from queue_app import registry
from queue_app.core.counters import TICK, lateness_of
from queue_app.core.records import NewTask, TaskRow, call_options
from queue_app.core.recurrence import DueTicks, Policy, jitter_of, plan
from queue_app.core.states import FAILURES, Status
from queue_app.exceptions import TaskQueueError, in_one_line
from queue_app.models import Schedule, ScheduleTick, Task
from queue_app.models.schedule import CatchUp, Overlap, TickKind
from queue_app.services.control.passed_ticks import is_paused, passed_over
from queue_app.services.enqueue.store import store_many
from queue_app.services.enqueue.validate import check_task
from queue_app.services.lifecycle.actions import cancel_many
from queue_app.services.notify import events
from queue_app.sql import schedules as rows
from queue_app.sql.database import alias, atomic, bound_transaction, call_on_commit, clock
from queue_app.sql.schedules import RECENT, NewTick

# What became of the ticks of schedules.


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


#: Maximum number of schedules in one transaction.
BATCH: Final = 500
#: Number of tasks after which a transaction takes no more schedules: late ticks of many schedules may be due at once.
ENOUGH: Final = 1000
#: Time until the next check of a schedule with a tick that waits for an earlier task.
HELD: Final = timedelta(seconds=1)
#: Time until the next check of a schedule that this process cannot handle, such as one in a zone that it does not know.
AFTER_ERROR: Final = timedelta(seconds=60)
#: Errors by which one task is refused, while the tasks of other schedules can be stored.
REFUSALS: Final = (TaskQueueError, DataError, IntegrityError)

_log = logging.getLogger("taskqueue")

type Live = list[tuple[uuid.UUID, str]]


def run_due(*, now: datetime | None = None, limit: int = BATCH) -> int:
    """Handle at most ``limit`` schedules that are due, fewer if they enqueue many tasks; return how many.

    Safe to run in any number of processes at once. ``now`` is PostgreSQL's time unless a test says otherwise.
    """
    with atomic():
        bound_transaction()
        now = now or clock()
        waiting = Schedule.objects.using(alias()).select_for_update(skip_locked=True)
        due = list(waiting.filter(due_at__lte=now).order_by("due_at")[:limit])
        if not due:
            return 0
        handled, counts = _handle(due, now)
    events.count(counts)
    return handled


def finish_due(schedule: Schedule, now: datetime) -> None:
    """Handle the ticks up to ``now`` of a locked schedule, whose times are about to change.

    By the new times they would be lost. Jitter does not put them off any longer.
    """
    jitter, schedule.jitter = schedule.jitter, 0.0
    _, counts = _handle([schedule], now)
    schedule.jitter = jitter
    call_on_commit(partial(events.count, counts))


def _handle(due: Sequence[Schedule], now: datetime) -> tuple[int, dict[str, int]]:
    """Handle locked schedules in the caller's transaction; return how many, and the increments of the counters."""
    live = rows.live_tasks([schedule.pk for schedule in due if schedule.overlap != Overlap.ALLOW])
    recorded = rows.recorded_ahead([schedule.pk for schedule in due])
    turns: list[_ScheduleCheck] = []
    tasks: dict[uuid.UUID, TaskRow] = {}
    for each in due:
        turn = _ScheduleCheck(each, now, live.get(each.pk, []), recorded[each.pk])
        turn.decide()
        turns.append(turn)
        tasks |= {task.id: task for task in turn.tasks}
        if len(tasks) >= ENOUGH:
            break
    cancel_many([task_id for turn in turns for task_id in turn.cancelled])
    ticks = [tick for turn in turns for tick in turn.ticks]
    for turn in turns:
        if turn.paused is not None:
            rows.record_passed(turn.paused)
    refused = store(ticks, tasks)
    rows.move_on([turn.position for turn in turns])
    held = {(turn.schedule.pk, turn.schedule.held_instant) for turn in turns}
    ticks += [turn.paused for turn in turns if turn.paused]
    return len(turns), _counts([tick for tick in ticks if (tick.schedule_id, tick.instant) not in held], refused)


def _counts(ticks: Sequence[NewTick], refused: Collection[uuid.UUID]) -> dict[str, int]:
    """Return the increments of the counters for ticks; ``refused`` are tasks that could not be stored."""
    enqueued = [tick.late_seconds for tick in ticks if tick.task_id and tick.task_id not in refused]
    found = Counter({"enqueued": len(enqueued), "refused": len(refused)})
    for tick in ticks:
        if not tick.task_id:
            found["refused" if tick.outcome else "skipped"] += tick.number
    return {f"{TICK}:{outcome}": count for outcome, count in found.items() if count} | lateness_of(enqueued)


def store(ticks: Sequence[NewTick], tasks: dict[uuid.UUID, TaskRow]) -> dict[uuid.UUID, str]:
    """Record ticks and store their tasks in the caller's transaction; return {task: reason} of refused ones.

    A tick that has a task already is left alone.
    """
    new = rows.record(ticks)
    wanted = [tick for tick in ticks if tick.task_id in tasks and (tick.schedule_id, tick.instant) in new]
    refused: dict[uuid.UUID, str] = {}
    if not wanted:
        return refused
    try:
        with atomic():
            store_many([tasks[tick.task_id] for tick in wanted if tick.task_id])
    except REFUSALS:
        for tick in wanted:
            try:
                with atomic():
                    store_many([tasks[tick.task_id]] if tick.task_id else [])
            except REFUSALS as error:
                reason = f"The task was refused: {in_one_line(error)}"
                rows.give_up([(tick.schedule_id, tick.instant, reason)])
                if tick.task_id:
                    refused[tick.task_id] = reason
    return refused


def task_of(schedule: Schedule, instant: datetime) -> TaskRow:
    """Return the task of one tick; raise ``InvalidTaskData``."""
    registry.check_for_caller(schedule.task_type)
    parameters = schedule.parameters
    if schedule.instant_parameter:
        parameters = parameters | {schedule.instant_parameter: instant.isoformat()}
    return check_task(NewTask(args=schedule.args, parameters=parameters, **call_options(schedule)))


def next_check(schedule: Schedule, next_instant: datetime | None) -> datetime | None:
    """Return when a scheduler has to check a schedule whose next tick is at ``next_instant``."""
    return None if next_instant is None else next_instant + jitter_of(schedule.name, next_instant, schedule.jitter)


def policy_of(schedule: Schedule) -> Policy:
    """Return which late ticks of the schedule run."""
    limit = {CatchUp.SKIP: 0, CatchUp.LAST: 1, CatchUp.ALL: schedule.catch_up_limit}[CatchUp(schedule.catch_up)]
    return Policy(timedelta(seconds=schedule.grace_seconds), limit, timedelta(seconds=schedule.catch_up_seconds))


@dataclass(slots=True)
class _ScheduleCheck:
    """One check of one schedule: which ticks to record, which tasks to store and to cancel."""

    schedule: Schedule
    now: datetime
    live: Live
    recorded: set[datetime]  # instants that were handled before their time, by a backfill
    ticks: list[NewTick] = field(default_factory=list)
    tasks: list[TaskRow] = field(default_factory=list)
    cancelled: list[uuid.UUID] = field(default_factory=list)
    paused: NewTick | None = None
    position: tuple[int, datetime | None, datetime | None, datetime | None] = (0, None, None, None)

    def decide(self) -> None:
        """Decide; an error of one schedule must not stop the others."""
        schedule = self.schedule
        before = schedule.next_instant, schedule.held_instant
        try:
            next_instant = self._decide()
        except Exception:  # noqa: BLE001 - logged; the other schedules continue
            _log.exception("the schedule %s cannot tick; the next try is in %s s", schedule, AFTER_ERROR.seconds)
            self.ticks, self.tasks, self.cancelled, self.paused = [], [], [], None
            schedule.next_instant, schedule.held_instant = before
            self.position = (schedule.pk, *before, self.now + AFTER_ERROR)
            return
        check_at = next_check(schedule, next_instant)
        if schedule.held_instant is not None:
            check_at = min(check_at or self.now + HELD, self.now + HELD)
        self.position = (schedule.pk, next_instant, schedule.held_instant, check_at)

    def _decide(self) -> datetime | None:
        schedule = self.schedule
        if schedule.paused:
            self.paused, schedule.next_instant = passed_over(schedule, self.now, self.recorded)
            if is_paused(schedule, self.now):
                return schedule.next_instant
        if schedule.held_instant is not None and not self.live:
            held, schedule.held_instant = schedule.held_instant, None
            self._enqueue(held, TickKind.DUE, "It waited until the task of an earlier tick had ended.")
        if schedule.next_instant is None:
            return None
        planned = plan(
            schedule.recurrence,
            schedule.next_instant,
            self.now,
            policy_of(schedule),
            lambda instant: jitter_of(schedule.name, instant, schedule.jitter),
            recorded=self.recorded,
        )
        self._run(planned)
        return planned.next_instant

    def _run(self, planned: DueTicks) -> None:
        if planned.missed is not None:
            first, last, number = planned.missed
            late = self.now - last
            reason = f"Missed by {late.total_seconds():.0f} s; catch_up is {self.schedule.catch_up}."
            self.ticks.append(self._tick(last, TickKind.CAUGHT_UP, reason=reason, first=first, number=number))
        for instant in planned.caught_up:
            self._overlap(instant, TickKind.CAUGHT_UP)
        for instant in planned.run:
            self._overlap(instant, TickKind.DUE)

    def _overlap(self, instant: datetime, kind: TickKind) -> None:
        """Enqueue the task of a tick, unless a task of an earlier tick is in the way."""
        schedule, reason = self.schedule, ""
        if self.live and schedule.overlap != Overlap.ALLOW:
            task_id, status = self.live[0]
            earlier = f"the task {task_id} of an earlier tick is still {status}"
            match schedule.overlap:
                case Overlap.SKIP:
                    self.ticks.append(self._tick(instant, kind, reason=f"Skipped, because {earlier}."))
                    return
                case Overlap.QUEUE_ONE if schedule.held_instant is not None:
                    reason = f"Skipped, because {earlier} and another tick waits for it."
                    self.ticks.append(self._tick(instant, kind, reason=reason))
                    return
                case Overlap.QUEUE_ONE:
                    schedule.held_instant = instant
                    self.ticks.append(self._tick(instant, kind, reason=f"Waits, because {earlier}."))
                    return
                case Overlap.CANCEL_PREVIOUS:
                    reason = f"Cancelled {', '.join(str(task_id) for task_id, _ in self.live)}."
                    mine = {task.id for task in self.tasks}
                    self.cancelled += [task_id for task_id, _ in self.live if task_id not in mine]
                    self._withdraw(mine)
                    self.live = []
        self._enqueue(instant, kind, reason)

    def _withdraw(self, tasks: set[uuid.UUID]) -> None:
        """Do not store the tasks of earlier ticks of this turn: the newest one cancels them."""
        self.tasks = []
        gone = "Cancelled by a later tick before it was enqueued."
        self.ticks = [
            tick._replace(task_id=None, reason=gone) if tick.task_id in tasks else tick for tick in self.ticks
        ]

    def _enqueue(self, instant: datetime, kind: TickKind, reason: str = "") -> None:
        try:
            task = task_of(self.schedule, instant)
        except TaskQueueError as error:
            tick = self._tick(instant, kind, reason=f"The task was refused: {error}")
            self.ticks.append(tick._replace(outcome=Status.FAILED.value))
            return
        self.tasks.append(task)
        self.live = [*self.live, (task.id, "queued")]
        self.ticks.append(self._tick(instant, kind, task_id=task.id, reason=reason))

    def _tick(  # noqa: PLR0913 - by name
        self,
        instant: datetime,
        kind: TickKind,
        *,
        task_id: uuid.UUID | None = None,
        reason: str = "",
        first: datetime | None = None,
        number: int = 1,
    ) -> NewTick:
        late = self.now - instant - jitter_of(self.schedule.name, instant, self.schedule.jitter)
        seconds = max(0.0, late.total_seconds())
        return NewTick(self.schedule.pk, instant, kind, self.now, seconds, task_id, reason, first, number)
