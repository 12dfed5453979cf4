"""Histograms of times: buckets, sums, percentiles."""

from bisect import bisect_left
from collections import Counter

import pytest
from hypothesis import given, strategies as st

from queue_app.core.counters import BOUNDS, as_json, bounds_of, from_json, percentile

TIMES = st.lists(st.floats(0.0001, 200_000), min_size=1, max_size=50)


def bucket_of(time: float) -> int:
    """Return the bucket of a time, as PostgreSQL's ``width_bucket`` does for times between two bounds."""
    return bisect_left(BOUNDS, time)


@given(TIMES)
def test_a_time_lies_within_the_bounds_of_its_bucket(times):
    for time in times:
        low, high = bounds_of(bucket_of(time))
        assert low <= time <= high or time > BOUNDS[-1]


@given(TIMES, TIMES)
def test_histograms_can_be_added_and_stored(some, others):
    one, two = (Counter(map(bucket_of, times)) for times in (some, others))
    assert from_json(as_json(one)) + from_json(as_json(two)) == Counter(map(bucket_of, some + others))


@given(st.lists(st.floats(0.0011, 80_000), min_size=1, max_size=200), st.sampled_from([0.5, 0.95, 1.0]))
def test_percentiles_lie_in_the_bucket_of_the_true_one(times, share):
    found = percentile(Counter(map(bucket_of, times)), share)
    true = sorted(times)[max(0, -int(-share * len(times) // 1) - 1)]
    assert bucket_of(true) - 1 <= bucket_of(found) <= bucket_of(true) + 1
    assert found / true == pytest.approx(1, abs=0.55)


def test_no_times_have_no_percentile():
    assert percentile({}, 0.5) is None
