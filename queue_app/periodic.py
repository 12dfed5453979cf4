"""Enqueue a task once per tick, even if cron runs on several machines or a message is delivered twice.

A tick is a time rounded down to a multiple of an interval, counted in UTC from the year 1970. The tick is
part of the idempotency key, so PostgreSQL accepts one task per tick.
"""

import hashlib
from datetime import UTC, datetime, timedelta
from typing import Any

from django.utils import timezone

from queue_app import registry
from queue_app.registry import AnyTask
from queue_app.tasks import AnyResult, QueueTask

#: Characters left for the name in a key of 64 characters.
_NAME_LENGTH = 64 - len("@20260101T000000Z")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def tick(every: float | timedelta, at: datetime | None = None) -> datetime:
    """Return the start of the interval that contains ``at`` (aware; default: now).

    ``every`` is an interval in seconds, or a timedelta. Raises ``ValueError`` if it is less
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
    """Return the idempotency key of a tick of ``name``; raises as ``tick`` does.

    Keys have 64 characters, so a long name is shortened to a digest of the whole and its end.
    """
    if len(name) > _NAME_LENGTH:
        digest = hashlib.sha256(name.encode()).hexdigest()[:12]
        name = f"{digest}:{name[len(digest) + 1 - _NAME_LENGTH :]}"
    return f"{name}@{tick(every, at):%Y%m%dT%H%M%SZ}"


def enqueue_tick(
    task: AnyTask, *args: Any, every: float | timedelta, at: datetime | None = None, **kwargs: Any
) -> AnyResult:
    """Enqueue ``task`` unless it was enqueued for this tick before; return the result of the one task.

    Two schedules of one function with different parameters need different keys: give each a
    name and use ``tick_key``. The key is valid for
    ``TASKQUEUE["RETENTION"]["IDEMPOTENCY_SECONDS"]``. Raises ``ValueError`` as ``tick`` does.
    """
    if not isinstance(task, QueueTask):
        raise TypeError("enqueue_tick() needs a task whose backend is TaskQueueBackend.")
    key = tick_key(registry.type_of(task), every, at)
    return task.using(idempotency_key=key).enqueue(*args, **kwargs)
