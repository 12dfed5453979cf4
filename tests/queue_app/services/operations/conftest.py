"""Workers and dead letters for operations."""

import pytest

from queue_app.models import DeadLetter
from tests.support.dead_letters import make_dead_letters
from tests.support.scene import Hand


@pytest.fixture
def hand(engine) -> Hand:
    """A worker of two task types."""
    return engine.worker("a b")


@pytest.fixture
def eight(hand) -> list[DeadLetter]:
    """Eight dead letters."""
    return make_dead_letters(hand, 8)
