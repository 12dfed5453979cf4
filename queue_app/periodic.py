"""Enqueue a task once per tick, whoever ticks: cron on several machines, two beats, a message delivered twice.

A tick is a time rounded down to a multiple of an interval, counted in UTC from the year 1970. Its
name is part of an idempotency key, so the database lets one task of each tick through.
"""

from __future__ import annotations

import hashlib
from datetime import UTC, datetime, timedelta
from typing import Any

from django.utils import timezone

from queue_app import registry
from queue_app.registry import AnyTask
from queue_app.tasks import AnyResult, QueueTask

#: What a key of 64 characters has left beside the sign and the time.
_NAME_LENGTH = 64 - len("@20260101T000000Z")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def tick(every: float | timedelta, at: datetime | None = None) -> datetime:
    """Return the beginning of the interval in which ``at`` (aware; default: now) lies.

    ``every`` is an interval in seconds, or a timedelta. Raises ``ValueError`` when it is less
    than a second or ``at`` is naive.
    """
    interval = every if isinstance(every, timedelta) else timedelta(seconds=every)
    if interval < timedelta(seconds=1):
        raise ValueError(f"every must be at least one second, not {every!r}.")
    at = at or timezone.now()
    if timezone.is_naive(at):
        raise ValueError("at must be an aware time, such as timezone.now().")
    return at.astimezone(UTC) - (at - _EPOCH) % interval


def tick_key(name: str, every: float | timedelta, at: datetime | None = None) -> str:
    """Return the idempotency key of a tick of what is called ``name``; raises as ``tick`` does.

    A long name is shortened to its end and a digest of the whole, as keys have 64 characters.
    """
    if len(name) > _NAME_LENGTH:
        digest = hashlib.sha256(name.encode()).hexdigest()[:12]
        name = f"{digest}:{name[len(digest) + 1 - _NAME_LENGTH :]}"
    return f"{name}@{tick(every, at):%Y%m%dT%H%M%SZ}"


def enqueue_tick(
    task: AnyTask, *args: Any, every: float | timedelta, at: datetime | None = None, **kwargs: Any
) -> AnyResult:
    """Enqueue ``task`` unless this tick of it was enqueued before; return the result of the one task.

    The parameters are part of the tick: two schedules of one function with different
    parameters need names of their own, so use ``tick_key`` for them. The key holds for
    ``TASKQUEUE["RETENTION"]["IDEMPOTENCY_SECONDS"]``. Raises ``ValueError`` as ``tick`` does.
    """
    if not isinstance(task, QueueTask):
        raise TypeError("enqueue_tick() needs a task of this queue: one whose backend is TaskQueueBackend.")
    key = tick_key(registry.type_of(task), every, at)
    return task.using(idempotency_key=key).enqueue(*args, **kwargs)
