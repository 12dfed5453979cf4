"""Fixtures for pytest; add this module to ``pytest_plugins`` in a ``conftest.py``.

Needs pytest-django, for its fixture ``settings``.
"""

from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any

import pytest

pytest.register_assert_rewrite("queue_app.testing.conformance")

from queue_app.testing.backend import on_rows  # noqa: E402 - after the call above
from queue_app.testing.clock import Clock, freeze  # noqa: E402
from queue_app.testing.override import overrides  # noqa: E402


def pytest_configure(config: pytest.Config) -> None:
    """Declare the marker."""
    config.addinivalue_line(
        "markers", "task_queue(eager=False, limits=None, real=False): the backend that the fixture task_queue gives"
    )


@pytest.fixture
def task_queue(settings: Any, request: pytest.FixtureRequest) -> Iterator[Any]:
    """Replace every backend of ``TASKS`` by one that runs tasks in the test; return that of ``default``.

    The arguments of ``@pytest.mark.task_queue`` are those of ``override_queue``. The test may use the database.
    """
    from django.tasks import task_backends  # noqa: PLC0415 - needs the settings

    marker = request.node.get_closest_marker("task_queue")
    options = dict(marker.kwargs) if marker else {}
    is_real = options.get("real")
    request.getfixturevalue("django_db_setup" if is_real else "db")  # the first names the test database
    with nullcontext() if is_real else on_rows():
        for name, value in overrides(**options).items():
            setattr(settings, name, value)
        yield task_backends["default"]


@pytest.fixture
def frozen_time() -> Iterator[Clock]:
    """Stop the time; return the clock that moves it."""
    with freeze() as clock:
        yield clock
