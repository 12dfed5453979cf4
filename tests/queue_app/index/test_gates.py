"""What guards a limit: each of these tests fails when the guard that it names is taken out."""

import pytest

from queue_app.core.limit_values import Limits
from tests.support.scene import Scene


@pytest.mark.parametrize("how", ["release", "revoke"])
def test_a_gate_that_opens_shows_what_waits_behind_it(scene: Scene, how: str):
    """Guard: the regrouping when a slot of a gate is freed."""
    scene.index.set_limits("t:a", Limits(max_concurrent=1))
    scene.push(scene.task("x"), scene.task("y", 1))
    hand = scene.worker()
    assert scene.claim(hand, 2) == "x"
    assert scene.claim(hand, 2) == ""
    if how == "release":
        scene.release("x")
    else:
        scene.index.revoke(scene.index.leases("default"))
    assert scene.called(hand)
    assert scene.claim(hand, 2) == "y"


@pytest.mark.parametrize("limits", [{"rate_count": 3, "rate_seconds": 3600.0}, {"min_delay_seconds": 3600.0}])
def test_a_rate_begins_empty_also_after_everything_was_lost(scene: Scene, limits: dict[str, float]):
    """Guard: a bucket of which nothing is known is empty at the instant from which its limit is known."""
    hand = scene.worker()
    for generation in (2, 3):
        scene.index._client.flushdb()
        scene.open(generation)
        scene.index.set_limits("t:a", Limits(**limits))
        scene.index.register(hand.profile, hand.id)
        scene.push(scene.task("x"))
        assert scene.claim(hand, 1) == ""
