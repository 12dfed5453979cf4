"""Fixtures for pytest; add this module to ``pytest_plugins`` in a ``conftest.py``.

Needs pytest-django, for its fixture ``settings``.
"""

from collections.abc import Iterator
from typing import Any

import pytest

pytest.register_assert_rewrite("queue_app.testing.conformance")

from queue_app.testing.override import (  # noqa: E402 - after the call above
    Clock,
    freeze,
    overrides,
)


def pytest_configure(config: pytest.Config) -> None:
    """Declare the marker."""
    config.addinivalue_line(
        "markers", "task_queue(eager=False, limits=None, real=False): the backend that the fixture task_queue gives"
    )


@pytest.fixture
def task_queue(settings: Any, request: pytest.FixtureRequest) -> Any:
    """Replace every backend of ``TASKS`` by a fresh ``MemoryBackend``; return that of ``default``.

    The arguments of ``@pytest.mark.task_queue`` are those of ``override_queue``.
    """
    from django.tasks import task_backends  # noqa: PLC0415 - needs the settings

    marker = request.node.get_closest_marker("task_queue")
    options = dict(marker.kwargs) if marker else {}
    if options.get("real"):
        request.getfixturevalue("django_db_setup")  # which names the test database
    for name, value in overrides(**options).items():
        setattr(settings, name, value)
    return task_backends["default"]


@pytest.fixture
def frozen_time() -> Iterator[Clock]:
    """Stop the time; return the clock that moves it."""
    with freeze() as clock:
        yield clock
