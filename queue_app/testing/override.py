"""Replace the backends of ``TASKS`` by ones for tests, or the index by one of the test database's own."""

import re
from contextlib import ExitStack
from typing import Any

from django.conf import settings
from django.db import connections
from django.tasks import task_backends
from django.test.utils import TestContextDecorator, override_settings

from queue_app import conf
from queue_app.testing.backend import on_rows


def overrides(*, eager: bool = False, limits: dict[str, Any] | None = None, real: bool = False) -> dict[str, Any]:
    """Return the settings of Django to override in a test; the arguments are those of ``override_queue``."""
    if not real:
        return {"TASKS": _entries({"EAGER": eager, "LIMITS": limits or {}})}
    if eager or limits:
        raise TypeError("real=True keeps the queue of the project: leave eager and limits out.")
    loaded = conf.load()[0]
    name = f"{loaded.key_prefix}-{connections[loaded.database_alias].settings_dict['NAME']}"
    prefix = re.sub(r"[^A-Za-z0-9_.-]", "-", name)[-100:]
    return {"TASKQUEUE": {**getattr(settings, "TASKQUEUE", {}), "KEY_PREFIX": prefix}}


def _entries(options: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {
        alias: {
            "BACKEND": "queue_app.testing.MemoryBackend",
            "QUEUES": entry.get("QUEUES", ["default"]),
            "OPTIONS": options,
        }
        for alias, entry in (getattr(settings, "TASKS", None) or {"default": {}}).items()
    }


class override_queue(TestContextDecorator):  # noqa: N801 - as Django's override_settings
    """Run tasks without Redis in a block, a test function or a test case; a block yields the backend of ``default``.

    With ``eager``, a task runs when it is enqueued, unless it is delayed; its error is in its result. ``limits`` is
    {queue: {field of Queue: value}}. ``real`` keeps the backends of the project, and gives the test database an index
    of its own: the names of its keys contain that of the database.
    """

    def __init__(self, *, eager: bool = False, limits: dict[str, Any] | None = None, real: bool = False) -> None:
        super().__init__()
        self._given: dict[str, Any] = {"eager": eager, "limits": limits, "real": real}
        self._stack = ExitStack()

    def enable(self) -> Any:
        """Replace the backends or the index; return the backend of ``default``."""
        if not self._given["real"]:
            self._stack.enter_context(on_rows())
        self._stack.enter_context(override_settings(**overrides(**self._given)))
        return task_backends["default"]

    def disable(self) -> None:
        """Bring the settings of the project back."""
        self._stack.close()

    def decorate_class(self, cls: Any) -> Any:
        """Override the settings in each test of a Django test case."""
        setup, own = cls.setUp, self

        def set_up(case: Any) -> None:
            own.enable()
            case.addCleanup(own.disable)
            setup(case)

        cls.setUp = set_up
        return cls
