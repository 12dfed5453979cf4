"""Fixtures for pytest; add this module to ``pytest_plugins`` in a ``conftest.py``.

Needs pytest-django, for its fixture ``settings``.
"""

from collections.abc import Iterator
from typing import Any

import pytest

pytest.register_assert_rewrite("queue_app.testing.conformance")

from queue_app.testing.clock import Clock, freeze  # noqa: E402 - after the call above
from queue_app.testing.memory import MemoryBackend  # noqa: E402


@pytest.fixture
def task_queue(settings: Any) -> MemoryBackend:
    """Replace every backend of ``TASKS`` by a fresh ``MemoryBackend``; return that of ``default``."""
    from django.tasks import task_backends  # noqa: PLC0415 - needs the settings

    settings.TASKS = {
        alias: {"BACKEND": "queue_app.testing.MemoryBackend", "QUEUES": entry.get("QUEUES", ["default"])}
        for alias, entry in (getattr(settings, "TASKS", None) or {"default": {}}).items()
    }
    backend = task_backends["default"]
    assert isinstance(backend, MemoryBackend)  # noqa: S101 - for the type checker
    return backend


@pytest.fixture
def frozen_time() -> Iterator[Clock]:
    """Stop the time; return the clock that moves it."""
    with freeze() as clock:
        yield clock
