"""The engine's fixtures, for the conformance suite on ``TaskQueueBackend``."""

# ruff: noqa: F401 - fixtures are used by name
from queue_app.testing.plugin import frozen_time, task_queue
from tests.queue_app.conftest import engine, forgetful_process, history, index, index_way, rows, scene
