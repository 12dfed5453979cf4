"""Several processes on one database and one index, and the history of every transition."""

# ruff: noqa: F401, F811 - fixtures are used by name
from collections.abc import Iterator

import pytest

from tests.integration.processes import Fleet, fleet_on
from tests.queue_app.conftest import engine, forgetful_process, history, index, rows, scene
from tests.queue_app.services.conftest import transactional_db


@pytest.fixture
def log(tmp_path) -> str:
    """The path of a file to which tasks append."""
    return str(tmp_path / "log")


@pytest.fixture
def fleet(engine, process_env, tmp_path) -> Iterator[Fleet]:
    """Start real processes on this test's database and index."""
    with fleet_on(process_env, tmp_path) as processes:
        yield processes
