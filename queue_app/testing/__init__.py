"""Test a project's tasks without servers: a backend in memory, a clock that tests move, and assertions.

A test needs only ``TASKS = {"default": {"BACKEND": "queue_app.testing.MemoryBackend", "QUEUES": []}}``.
``queue_app.testing.plugin`` has fixtures for pytest; ``queue_app.testing.conformance`` tests any backend of
``django.tasks``.
"""

from typing import TYPE_CHECKING, Any

from queue_app.core import rooms
from queue_app.testing.asserts import assert_enqueued, assert_not_enqueued, drain, enqueued
from queue_app.testing.memory import MemoryBackend
from queue_app.testing.override import Clock, freeze, override_queue

if TYPE_CHECKING:
    from queue_app.schedules.testing import assert_scheduled, run_schedules
    from queue_app.workflows.testing import assert_workflow

__all__ = [
    "Clock",
    "MemoryBackend",
    "assert_enqueued",
    "assert_not_enqueued",
    "assert_scheduled",
    "assert_workflow",
    "drain",
    "enqueued",
    "freeze",
    "override_queue",
    "run_schedules",
]


def __getattr__(name: str) -> Any:
    """Return what a room adds, on first use: this package belongs to the kernel, which imports no room."""
    if name in __all__:
        return rooms.part(name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
