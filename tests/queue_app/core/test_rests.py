"""Rests: a slow look is not repeated before a hundred times as long has passed."""

import pytest

from queue_app.core.rests import Rests


@pytest.mark.parametrize(("took", "rest"), [(0.001, 0.0), (0.01, 0.0), (0.02, 2.0), (3.0, 300.0)])
def test_a_look_rests_for_a_hundred_times_as_long_as_it_took(took, rest):
    now = [50.0]
    rests = Rests(1.0, lambda: now[0])
    rests.begin("a", took)
    if rest:
        now[0] += rest - 0.001
        assert "a" in rests
        assert "b" not in rests, "each look has a rest of its own"
        now[0] += 0.001
    assert "a" not in rests
