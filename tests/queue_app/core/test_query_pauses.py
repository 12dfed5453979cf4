"""A slow query is not repeated before a hundred times its duration has passed."""

import pytest

from queue_app.core.process import QueryPauses


@pytest.mark.parametrize(("took", "pause"), [(0.001, 0.0), (0.01, 0.0), (0.02, 2.0), (3.0, 300.0)])
def test_a_query_pauses_for_a_hundred_times_its_duration(took, pause):
    now = [50.0]
    pauses = QueryPauses(1.0, lambda: now[0])
    pauses.begin("a", took)
    if pause:
        now[0] += pause - 0.001
        assert "a" in pauses
        assert "b" not in pauses, "each query has its own pause"
        now[0] += 0.001
    assert "a" not in pauses
