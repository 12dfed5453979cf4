"""Replace the backends of ``TASKS`` by ones in memory, for a test, a class of tests or a block."""

from typing import Any

from django.conf import settings
from django.tasks import task_backends
from django.test.utils import TestContextDecorator, override_settings

from queue_app.testing.memory import MemoryBackend


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
    {queue: {field of Queue: value}}.
    """

    def __init__(self, *, eager: bool = False, limits: dict[str, Any] | None = None) -> None:
        super().__init__()
        self._given: dict[str, Any] = {"eager": eager, "limits": limits}
        self._override: override_settings | None = None

    def enable(self) -> MemoryBackend:
        """Replace the backends; return that of ``default``."""
        self._override = override_settings(TASKS=memory_entries(**self._given))
        self._override.enable()
        backend = task_backends["default"]
        assert isinstance(backend, MemoryBackend)  # noqa: S101 - for the type checker
        return backend

    def disable(self) -> None:
        """Bring the backends of the project back."""
        if self._override is not None:
            self._override.disable()
            self._override = None

    def decorate_class(self, cls: Any) -> Any:
        """Replace the backends in each test of a Django test case."""
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
