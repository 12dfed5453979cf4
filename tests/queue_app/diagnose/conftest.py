"""The yard in which the watchdog is tested. Tests commit for real."""

import pytest

from queue_app.services.upkeep.jobs import take_lead
from tests.queue_app.services.conftest import hand, transactional_db  # noqa: F401
from tests.support.yard import Yard


@pytest.fixture
def yard(engine) -> Yard:
    """A yard in which only the watchdog repairs; a scheduler leads."""
    take_lead("me", 3600)
    return Yard()
