"""Fixtures of the page about testing."""

from queue_app.testing.plugin import frozen_time, task_queue  # noqa: F401 - used by name
