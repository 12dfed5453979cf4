"""Pause and resume a queue, a task type, a concurrency key, or everything; the index learns of it on commit.

What is paused starts nothing new, what runs finishes. A pause may end by itself: the scheduler
resumes what is due (``resume_due``).

Crash points: the row is all that is written; the copy in the index is a hint, which the
reconciler repeats.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any, Final

from django.db.models import QuerySet
from django.db.models.functions import Now
from django.utils import timezone

from queue_app import signals
from queue_app.exceptions import InvalidTaskData, UnknownQueue
from queue_app.models import Limit, Queue, RuntimeSettings
from queue_app.models.limit import Scope
from queue_app.services.control.limits import refused
from queue_app.sql import pending_work
from queue_app.sql.database import alias, atomic

MAX_PAUSE: Final = timedelta(days=366)
FIELDS: Final = ("paused", "paused_at", "paused_by", "paused_reason", "resume_at", "updated_at")

type Paused = Queue | Limit | RuntimeSettings


def pause(name: str, *, by: str = "", reason: str = "", resume_at: datetime | None = None) -> Queue:
    """Start nothing new from the queue; raise ``UnknownQueue``, or ``InvalidTaskData`` for a bad ``resume_at``.

    Pausing what is paused changes nothing, unless the pause shall end at another time: then
    it is this one's from now on.
    """
    check_resume_at(resume_at)
    with atomic():
        return _pause(_queue(name), by=by, reason=reason, resume_at=resume_at)


def resume(name: str) -> Queue:
    """Let a paused queue go on. Raises ``UnknownQueue``."""
    with atomic():
        return _resume(_queue(name))


def pause_type(task_type: str, *, by: str = "", reason: str = "", resume_at: datetime | None = None) -> Limit:
    """Start no task of this type, in whatever queue; raise ``InvalidTaskData``. As ``pause``."""
    return _pause_limit(Scope.TYPE, task_type, by=by, reason=reason, resume_at=resume_at)


def resume_type(task_type: str) -> Limit | None:
    """Let tasks of a paused type start again; return its limits, ``None`` when it has none."""
    return _resume_limit(Scope.TYPE, task_type)


def pause_key(key: str, *, by: str = "", reason: str = "", resume_at: datetime | None = None) -> Limit:
    """Start no task with this concurrency key; raise ``InvalidTaskData``. As ``pause``."""
    return _pause_limit(Scope.KEY, key, by=by, reason=reason, resume_at=resume_at)


def resume_key(key: str) -> Limit | None:
    """Let tasks with a paused key start again; return its limits, ``None`` when it has none."""
    return _resume_limit(Scope.KEY, key)


def pause_everything(*, by: str = "", reason: str = "", resume_at: datetime | None = None) -> RuntimeSettings:
    """Start nothing at all; raise ``InvalidTaskData``. As ``pause``."""
    check_resume_at(resume_at)
    with atomic():
        return _pause(_settings(), by=by, reason=reason, resume_at=resume_at)


def resume_everything() -> RuntimeSettings:
    """Let everything go on that is not paused by itself."""
    with atomic():
        return _resume(_settings())


def resume_due() -> int:
    """Resume what was paused until now; return how many. Safe twice at once."""
    if not pending_work.any_pause_over():
        return 0
    resumed = 0
    for manager in (Queue.objects, Limit.objects, RuntimeSettings.objects):
        with atomic():
            rows: QuerySet[Any] = manager.using(alias()).select_for_update(skip_locked=True)
            for found in rows.filter(paused=True, resume_at__lte=Now()):
                _resume(found)
                signals.resumed_by_itself.send(None, what=describe(found))
                resumed += 1
    return resumed


def check_resume_at(value: datetime | None) -> datetime | None:
    """Return ``value`` when a pause can end then: an aware time within the next year."""
    if value is None:
        return None
    if not isinstance(value, datetime):
        raise InvalidTaskData("resume_at", "resume_at must be a date and time.", code="datetime_expected")
    if value.tzinfo is None or value.utcoffset() is None:
        raise InvalidTaskData("resume_at", "resume_at needs a time zone.", code="timezone_required")
    now = datetime.now(UTC)
    if not now < value <= now + MAX_PAUSE:
        raise InvalidTaskData(
            "resume_at",
            f"resume_at must lie ahead, by at most {MAX_PAUSE.days} days.",
            code="date_out_of_range",
        )
    return value


def describe(what: Paused) -> str:
    """Say what it is that is paused, as in "the queue mail"."""
    if isinstance(what, Queue):
        return f"the queue {what.name}"
    if isinstance(what, Limit):
        return f"the task type {what.name}" if what.scope == Scope.TYPE else f"the key {what.name}"
    return "everything"


def _pause[P: Paused](what: P, *, by: str, reason: str, resume_at: datetime | None) -> P:
    if what.paused and what.resume_at == resume_at:
        return what
    what.paused, what.paused_at = True, what.paused_at or timezone.now()
    what.paused_by, what.paused_reason, what.resume_at = by, reason, resume_at
    what.save(update_fields=FIELDS)
    return what


def _resume[P: Paused](what: P) -> P:
    if what.paused:
        what.paused, what.paused_at, what.paused_by, what.paused_reason, what.resume_at = False, None, "", "", None
        what.save(update_fields=FIELDS)
    return what


def _pause_limit(scope: Scope, name: str, *, by: str, reason: str, resume_at: datetime | None) -> Limit:
    check_resume_at(resume_at)
    with refused():
        Limit(scope=scope, name=name).full_clean(validate_unique=False, validate_constraints=False)
    limits = Limit.objects.using(alias())
    with atomic():
        limits.get_or_create(scope=scope, name=name)
        found = limits.select_for_update().get(scope=scope, name=name)
        return _pause(found, by=by, reason=reason, resume_at=resume_at)


def _resume_limit(scope: Scope, name: str) -> Limit | None:
    with atomic():
        found = Limit.objects.using(alias()).select_for_update().filter(scope=scope, name=name).first()
        return found and _resume(found)


def _queue(name: str) -> Queue:
    queues = Queue.objects.using(alias())
    try:
        return queues.select_for_update().get(pk=name)
    except Queue.DoesNotExist:
        raise UnknownQueue(name, queues.values_list("name", flat=True)[:1000]) from None


def _settings() -> RuntimeSettings:
    rows = RuntimeSettings.objects.using(alias())
    rows.get_or_create(pk=1)
    return rows.select_for_update().get(pk=1)
