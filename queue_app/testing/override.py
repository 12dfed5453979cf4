"""Replace the backends of ``TASKS`` by ones in memory, or the index by one of the test database's own."""

import re
from typing import Any

from django.conf import settings
from django.db import connections
from django.tasks import task_backends
from django.test.utils import TestContextDecorator, override_settings

from queue_app import conf


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
