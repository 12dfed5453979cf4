"""Test a project's tasks without servers: a backend in memory, a clock that tests move, and assertions.

A test needs only ``TASKS = {"default": {"BACKEND": "queue_app.testing.MemoryBackend", "QUEUES": []}}``.
``queue_app.testing.plugin`` has fixtures for pytest; ``queue_app.testing.conformance`` tests any backend of
``django.tasks``.
"""

from queue_app.testing.asserts import assert_enqueued, assert_not_enqueued, assert_workflow, drain, enqueued
from queue_app.testing.memory import MemoryBackend
from queue_app.testing.override import Clock, freeze, override_queue
from queue_app.testing.schedules import assert_scheduled, run_schedules

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
