"""Pause and resume a queue, a task type, a concurrency key, a schedule, or everything.

A pause starts no new task; running tasks finish. A paused schedule does not tick. A pause with ``resume_at``
ends by itself: the scheduler calls ``resume_due``. Receivers copy the change to the index on commit.

Crash points: only the row counts; the reconciler repeats a copy to the index that was lost.
"""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from django.db.models import QuerySet
from django.db.models.functions import Now
from django.utils import timezone

from queue_app import signals
from queue_app.core.limits import Scope
from queue_app.exceptions import InvalidTaskData, ScheduleNotFound
from queue_app.models import Limit, Queue, RuntimeSettings, Schedule
from queue_app.services.control.limits import translated_errors
from queue_app.services.control.passed_ticks import settle_pause
from queue_app.services.enqueue.validate import check_aware
from queue_app.services.notify.index import send_on_commit
from queue_app.sql import upkeep
from queue_app.sql.database import alias, atomic, clock

MAX_PAUSE: Final = timedelta(days=366)
FIELDS: Final = ("paused", "paused_at", "paused_by", "paused_reason", "resume_at", "updated_at")

#: The kind of a pause of everything; the others are scopes of limits and "queue".
EVERYTHING: Final = "everything"

type Paused = Queue | Limit | RuntimeSettings | Schedule


def pause(name: str, *, by: str = "", reason: str = "", resume_at: datetime | None = None) -> Queue:
    """Pause a queue; raise ``UnknownQueue``, or ``InvalidTaskData`` for an invalid ``resume_at``.

    A second pause changes nothing, unless its ``resume_at`` differs: then it replaces the first one.
    """
    return _pause(lambda: lock_queue(name), by, reason, resume_at)


def resume(name: str) -> Queue:
    """Resume a queue; raise ``UnknownQueue``."""
    with atomic():
        return _resume(lock_queue(name))


def pause_type(task_type: str, *, by: str = "", reason: str = "", resume_at: datetime | None = None) -> Limit:
    """Pause a task type in all queues, like ``pause``; raise ``InvalidTaskData``."""
    return _pause(lambda: _lock_limit(Scope.TYPE, task_type), by, reason, resume_at)


def resume_type(task_type: str) -> Limit | None:
    """Resume a task type; return its limits, ``None`` when it has none."""
    return _resume_limit(Scope.TYPE, task_type)


def pause_key(key: str, *, by: str = "", reason: str = "", resume_at: datetime | None = None) -> Limit:
    """Pause a concurrency key, like ``pause``; raise ``InvalidTaskData``."""
    return _pause(lambda: _lock_limit(Scope.KEY, key), by, reason, resume_at)


def resume_key(key: str) -> Limit | None:
    """Resume a concurrency key; return its limits, ``None`` when it has none."""
    return _resume_limit(Scope.KEY, key)


def pause_schedule(name: str, *, by: str = "", reason: str = "", resume_at: datetime | None = None) -> Schedule:
    """Pause a schedule, like ``pause``; raise ``ScheduleNotFound``, or ``InvalidTaskData``."""
    return _pause(lambda: lock_schedule(name), by, reason, resume_at)


def resume_schedule(name: str, *, now: datetime | None = None) -> Schedule:
    """Resume a schedule, which continues with its next tick; raise ``ScheduleNotFound``."""
    with atomic():
        return _resume(lock_schedule(name), now)


def pause_everything(*, by: str = "", reason: str = "", resume_at: datetime | None = None) -> RuntimeSettings:
    """Pause everything, like ``pause``; raise ``InvalidTaskData``."""
    return _pause(_lock_settings, by, reason, resume_at)


def resume_everything() -> RuntimeSettings:
    """End the pause of everything; queues, task types and keys with their own pause stay paused."""
    with atomic():
        return _resume(_lock_settings())


#: {kind: how to pause it, how to resume it}; everything has no name.
BY_KIND: Final[dict[str, tuple[Callable[..., Paused], Callable[..., Paused | None]]]] = {
    "queue": (pause, resume),
    Scope.TYPE.value: (pause_type, resume_type),
    Scope.KEY.value: (pause_key, resume_key),
    "schedule": (pause_schedule, resume_schedule),
    EVERYTHING: (pause_everything, resume_everything),
}


def resume_due() -> int:
    """End the pauses whose ``resume_at`` has passed; return their number. Safe to run concurrently."""
    if not upkeep.any_pause_over():
        return 0
    resumed = 0
    for manager in (Queue.objects, Limit.objects, RuntimeSettings.objects, Schedule.objects):
        with atomic():
            rows: QuerySet[Any] = manager.using(alias()).select_for_update(skip_locked=True)
            for found in rows.filter(paused=True, resume_at__lte=Now()):
                _resume(found)
                send_on_commit(signals.resumed_by_itself, what=describe(found))
                resumed += 1
    return resumed


def check_resume_at(value: datetime | None) -> datetime | None:
    """Return ``value`` if it is ``None`` or an aware time within the next year; else raise ``InvalidTaskData``."""
    if value is None:
        return None
    now = datetime.now(UTC)
    if not now < check_aware(value, "resume_at") <= now + MAX_PAUSE:
        message = f"resume_at must be in the future, by at most {MAX_PAUSE.days} days."
        raise InvalidTaskData("resume_at", message, code="date_out_of_range")
    return value


def describe(what: Paused) -> str:
    """Return a phrase for what is paused, such as "the queue mail"."""
    if isinstance(what, Queue):
        return f"the queue {what.name}"
    if isinstance(what, Schedule):
        return f"the schedule {what.name}"
    if isinstance(what, Limit):
        return f"the task type {what.name}" if what.scope == Scope.TYPE else f"the key {what.name}"
    return EVERYTHING


def _pause[P: Paused](lock: Callable[[], P], by: str, reason: str, resume_at: datetime | None) -> P:
    check_resume_at(resume_at)
    with atomic():
        what = lock()
        if not what.paused or what.resume_at != resume_at:
            if what.paused and isinstance(what, Schedule):
                settle_pause(what, clock())
            what.paused, what.paused_at = True, what.paused_at or timezone.now()
            what.paused_by, what.paused_reason, what.resume_at = by, reason, resume_at
            what.save(update_fields=FIELDS)
        return what


def _resume[P: Paused](what: P, now: datetime | None = None) -> P:
    if what.paused:
        if isinstance(what, Schedule):
            settle_pause(what, now or clock())
        what.paused, what.paused_at, what.paused_by, what.paused_reason, what.resume_at = False, None, "", "", None
        what.save(update_fields=FIELDS)
    return what


def _lock_limit(scope: Scope, name: str) -> Limit:
    with translated_errors():
        Limit(scope=scope, name=name).full_clean(validate_unique=False, validate_constraints=False)
    limits = Limit.objects.using(alias())
    limits.get_or_create(scope=scope, name=name)
    return limits.select_for_update().get(scope=scope, name=name)


def _resume_limit(scope: Scope, name: str) -> Limit | None:
    with atomic():
        found = Limit.objects.using(alias()).select_for_update().filter(scope=scope, name=name).first()
        return found and _resume(found)


def lock_queue(name: str) -> Queue:
    """Return a queue and lock its row; raise ``UnknownQueue``."""
    try:
        return Queue.objects.using(alias()).select_for_update().get(pk=name)
    except Queue.DoesNotExist:
        raise Queue.unknown(name, using=alias()) from None


def lock_schedule(name: str) -> Schedule:
    """Return a schedule and lock its row; raise ``ScheduleNotFound``."""
    found = Schedule.objects.using(alias()).select_for_update().filter(name=name).first()
    if found is None:
        raise ScheduleNotFound(f"There is no schedule {name!r}.")
    return found


def _lock_settings() -> RuntimeSettings:
    rows = RuntimeSettings.objects.using(alias())
    rows.get_or_create(pk=1)
    return rows.select_for_update().get(pk=1)
