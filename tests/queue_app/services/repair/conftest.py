"""The yard in which the watchdog is tested."""

import pytest

from queue_app.services.upkeep.jobs import take_lead
from tests.support.yard import Yard


@pytest.fixture
def yard(engine) -> Yard:
    """A yard in which only the watchdog repairs; a scheduler leads."""
    take_lead("me", 3600)
    return Yard()
