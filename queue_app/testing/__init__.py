"""Test a project's tasks: run them in the test's transaction, by a clock that tests move; assert what is enqueued.

Tests need their database, and neither Redis nor a worker. ``MemoryBackend`` is the former name of ``TestingBackend``.
``queue_app.testing.plugin`` has fixtures for pytest; ``queue_app.testing.conformance`` tests any backend of
``django.tasks``.
"""

from typing import TYPE_CHECKING, Any

from queue_app.core import rooms
from queue_app.testing.asserts import adrain, assert_enqueued, assert_not_enqueued, drain, enqueued
from queue_app.testing.backend import TestingBackend
from queue_app.testing.clock import Clock, freeze
from queue_app.testing.override import override_queue

if TYPE_CHECKING:
    from queue_app.schedules.testing import assert_scheduled, run_schedules
    from queue_app.workflows.testing import assert_workflow

__all__ = [
    "Clock",
    "MemoryBackend",
    "TestingBackend",
    "adrain",
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

MemoryBackend = TestingBackend


def __getattr__(name: str) -> Any:
    """Return what a room adds, on first use: this package belongs to the kernel, which imports no room."""
    if name in __all__:
        return rooms.part(name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
