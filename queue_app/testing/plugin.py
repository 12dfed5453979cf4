"""Fixtures for pytest; add this module to ``pytest_plugins`` in a ``conftest.py``.

Needs pytest-django, for its fixture ``settings``.
"""

from collections.abc import Iterator
from typing import Any

import pytest

pytest.register_assert_rewrite("queue_app.testing.conformance")

from queue_app.testing.clock import Clock, freeze  # noqa: E402 - after the call above
from queue_app.testing.override import memory_entries  # noqa: E402


def pytest_configure(config: pytest.Config) -> None:
    """Declare the marker."""
    config.addinivalue_line(
        "markers", "task_queue(eager=False, limits=None, real=False): the backend that the fixture task_queue gives"
    )


@pytest.fixture
def task_queue(settings: Any, request: pytest.FixtureRequest) -> Any:
    """Replace every backend of ``TASKS`` by a fresh ``MemoryBackend``; return that of ``default``.

    ``@pytest.mark.task_queue(real=True)`` keeps the backends of the project; other arguments are those of
    ``override_queue``.
    """
    from django.tasks import task_backends  # noqa: PLC0415 - needs the settings

    marker = request.node.get_closest_marker("task_queue")
    options = dict(marker.kwargs) if marker else {}
    if not options.pop("real", False):
        settings.TASKS = memory_entries(**options)
    return task_backends["default"]


@pytest.fixture
def frozen_time() -> Iterator[Clock]:
    """Stop the time; return the clock that moves it."""
    with freeze() as clock:
        yield clock
