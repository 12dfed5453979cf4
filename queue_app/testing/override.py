"""Replace the backends of ``TASKS`` by ones in memory, or the index by one of the test database's own."""

import re
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any
from unittest.mock import patch

from django.conf import settings
from django.db import connections
from django.tasks import task_backends
from django.test.utils import TestContextDecorator, override_settings
from django.utils import timezone

from queue_app import conf, registry
from queue_app.core.priorities import band_from_django
from queue_app.core.records import ClaimedTask, TaskRow, TaskSpec
from queue_app.hooks import before_enqueue
from queue_app.registry import AnyTask
from queue_app.testing.stored import StoredCall


def overrides(*, eager: bool = False, limits: dict[str, Any] | None = None, real: bool = False) -> dict[str, Any]:
    """Return the settings of Django to override in a test; the arguments are those of ``override_queue``."""
    if not real:
        return {"TASKS": memory_entries(eager=eager, limits=limits)}
    if eager or limits:
        raise TypeError("real=True keeps the queue of the project: leave eager and limits out.")
    loaded = conf.load()[0]
    name = f"{loaded.key_prefix}-{connections[loaded.database_alias].settings_dict['NAME']}"
    prefix = re.sub(r"[^A-Za-z0-9_.-]", "-", name)[-100:]
    return {"TASKQUEUE": {**getattr(settings, "TASKQUEUE", {}), "KEY_PREFIX": prefix}}


def memory_entries(*, eager: bool = False, limits: dict[str, Any] | None = None) -> dict[str, dict[str, Any]]:
    """Return ``TASKS`` with the memory backend in each entry."""
    options = {"EAGER": eager, "LIMITS": limits or {}}
    return {
        alias: {
            "BACKEND": "queue_app.testing.MemoryBackend",
            "QUEUES": entry.get("QUEUES", ["default"]),
            "OPTIONS": options,
        }
        for alias, entry in (getattr(settings, "TASKS", None) or {"default": {}}).items()
    }


class override_queue(TestContextDecorator):  # noqa: N801 - as Django's override_settings
    """Use a memory backend in a block, a test function or a test case; a block yields the backend of ``default``.

    With ``eager``, a task runs when it is enqueued, unless it is delayed; its error is in its result. ``limits`` is
    {queue: {field of Queue: value}}. ``real`` keeps the backends of the project, and gives the test database an index
    of its own: the names of its keys contain that of the database.
    """

    def __init__(self, *, eager: bool = False, limits: dict[str, Any] | None = None, real: bool = False) -> None:
        super().__init__()
        self._given: dict[str, Any] = {"eager": eager, "limits": limits, "real": real}
        self._override: override_settings | None = None

    def enable(self) -> Any:
        """Replace the backends or the index; return the backend of ``default``."""
        self._override = override_settings(**overrides(**self._given))
        self._override.enable()
        return task_backends["default"]

    def disable(self) -> None:
        """Bring the settings of the project back."""
        if self._override is not None:
            self._override.disable()
            self._override = None

    def decorate_class(self, cls: Any) -> Any:
        """Override the settings in each test of a Django test case."""
        setup, teardown = cls.setUp, cls.tearDown
        own = self

        def set_up(case: Any) -> None:
            own.enable()
            setup(case)

        def tear_down(case: Any) -> None:
            teardown(case)
            own.disable()

        cls.setUp, cls.tearDown = set_up, tear_down
        return cls


# A clock that tests move; while it is frozen, Django's ``timezone.now`` returns its time.


class Clock:
    """The time of a ``freeze`` block; only ``advance`` and ``move_to`` change it."""

    def __init__(self, start: datetime) -> None:
        self.now = start
        self.ticked_until = start  # schedules have ticked up to this time (``run_schedules``)

    def advance(self, by: float | timedelta) -> datetime:
        """Move forward by seconds or a timedelta; return the new time. Raises ``ValueError`` for going back."""
        return self.move_to(self.now + (by if isinstance(by, timedelta) else timedelta(seconds=by)))

    def move_to(self, time: datetime) -> datetime:
        """Move forward to an aware time; return it. Raises ``ValueError`` for going back."""
        if time < self.now:
            raise ValueError(f"The clock shows {self.now:%Y-%m-%d %H:%M:%S%z} and cannot go back to {time}.")
        self.now = time
        return time


_frozen: list[Clock] = []


def current() -> Clock | None:
    """Return the clock of the innermost ``freeze`` block, or ``None`` outside of one."""
    return _frozen[-1] if _frozen else None


@contextmanager
def freeze(at: datetime | None = None) -> Iterator[Clock]:
    """Stop the time for the block, at ``at`` (aware) or now, and yield the clock that moves it.

    It patches ``django.utils.timezone.now``, for all threads. The clock of a database is not affected.
    """
    if at is not None and timezone.is_naive(at):
        raise ValueError("freeze() needs an aware time, such as timezone.now() or datetime(…, tzinfo=UTC).")
    clock = Clock(at or timezone.now())
    _frozen.append(clock)
    try:
        with patch.object(timezone, "now", lambda: clock.now):
            yield clock
    finally:
        _frozen.remove(clock)


# Hooks in memory: the same calls as in a worker.

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def metadata_of(task: AnyTask, args: str, kwargs: str) -> str | None:
    """Return the metadata that hooks add to a new call; let their exceptions through."""
    user = getattr(task, "user", "")
    spec = TaskSpec(task_type=registry.type_of(task), queue=task.queue_name, priority=0, user=user, lane="")
    return before_enqueue(TaskRow(uuid.uuid4(), spec, args, kwargs)).metadata


def claimed(call: StoredCall) -> ClaimedTask:
    """Return a task in memory as hooks see it."""
    return ClaimedTask(
        id=uuid.UUID(call.id),
        attempt=call.failures + 1,
        task_type=registry.type_of(call.task),
        queue=call.task.queue_name,
        priority=int(band_from_django(call.task.priority)),
        user=call.option("user", ""),
        created_at=call.created_at,
        queued_at=call.queued_at or call.created_at,
        started_at=call.started_at or _EPOCH,
        timeout=0.0,
        max_retries=0,
        failures=call.failures,
        args=call.args,
        parameters=call.kwargs,
        metadata=call.metadata,
    )
