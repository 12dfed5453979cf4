"""The fixtures that the page about testing speaks of."""

from queue_app.testing.plugin import frozen_time, task_queue  # noqa: F401 - used by name
