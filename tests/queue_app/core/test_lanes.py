"""Lanes and scores."""

import itertools
from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given, strategies as st

from queue_app.core.limits import BAND_WIDTH, Lane, lane_name, queued_at_of, score
from queue_app.core.priorities import Band
from tests.support.index_state import band_of

INSTANTS = [
    datetime(2000, 1, 1, tzinfo=UTC),
    datetime(2026, 11, 21, 1, 2, 3, 456789, tzinfo=UTC),
    datetime(2033, 5, 18, 3, 33, 20, tzinfo=UTC),  # 2 * 10^12 ms
    datetime(2200, 12, 31, 23, 59, 59, 999999, tzinfo=UTC),
]


def test_a_lane_is_queue_type_and_capabilities():
    assert Lane("q", "pkg.f", ("a", "b")).name == lane_name("q", "pkg.f", ["a", "b"]) == "q\x1fpkg.f\x1fa,b"
    assert Lane("q", "pkg.f").name == "q\x1fpkg.f\x1f"


@pytest.mark.parametrize(("band", "at"), list(itertools.product(Band, INSTANTS)))
def test_a_score_carries_band_and_time(band, at):
    value = score(band, at)
    assert band * BAND_WIDTH <= value < (band + 1) * BAND_WIDTH
    assert band_of(value) is band
    assert abs(queued_at_of(value) - at) <= timedelta(microseconds=8)


@pytest.mark.parametrize(("band", "at"), list(itertools.product(Band, INSTANTS)))
def test_eight_microseconds_make_a_difference(band, at):
    """Bulk enqueues and due tasks rely on this, in every band until the year 2200."""
    values = [score(band, at + timedelta(microseconds=8 * n)) for n in range(1000)]
    assert all(one < other for one, other in itertools.pairwise(values))


def test_the_zone_does_not_matter():
    at = INSTANTS[1]
    assert score(2, at.astimezone(timezone(timedelta(hours=9)))) == score(2, at)


@given(
    st.integers(0, 4),
    st.integers(0, 4),
    st.datetimes(datetime(2000, 1, 1), datetime(2200, 1, 1), timezones=st.just(UTC)),  # noqa: DTZ001 - Hypothesis adds it
    st.datetimes(datetime(2000, 1, 1), datetime(2200, 1, 1), timezones=st.just(UTC)),  # noqa: DTZ001
)
def test_scores_order_by_band_then_time(band, other, at, later):
    if (band, at) < (other, later):
        assert score(band, at) <= score(other, later)
    assert repr(score(band, at)) == repr(float(repr(score(band, at)))), "its text is exact"
