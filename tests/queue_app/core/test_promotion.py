"""Promotion: the age at which a task is treated as a task of a higher band."""

import itertools
import math
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given, strategies as st

from queue_app.core.priorities import MAX_SECONDS, Band, Rise, effective_band, rises

CRITICAL, HIGH, NORMAL, LOW, BACKGROUND = Band
DEFAULTS = {NORMAL: 1200.0, LOW: 600.0, BACKGROUND: 600.0}
NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)

# own band, age in seconds -> effective band, with the default thresholds
AGES = {
    (CRITICAL, 10**8): CRITICAL,
    (HIGH, 10**8): HIGH,
    (NORMAL, 1199.999): NORMAL,
    (NORMAL, 1200): HIGH,
    (LOW, 600): NORMAL,
    (LOW, 1800): HIGH,
    (BACKGROUND, 600): LOW,
    (BACKGROUND, 1200): NORMAL,
    (BACKGROUND, 2399.999): NORMAL,
    (BACKGROUND, 2400): HIGH,
    (BACKGROUND, -5): BACKGROUND,  # a clock that is behind
}


@pytest.mark.parametrize(("own", "age"), AGES)
def test_defaults(own, age):
    assert effective_band(own, NOW - timedelta(seconds=age), NOW, DEFAULTS) is AGES[own, age]


def test_the_rises_of_each_band():
    assert {band: list(rises(band, DEFAULTS)) for band in Band} == {
        CRITICAL: [],
        HIGH: [],
        NORMAL: [Rise(HIGH, 1200)],
        LOW: [Rise(NORMAL, 600), Rise(HIGH, 1800)],
        BACKGROUND: [Rise(LOW, 600), Rise(NORMAL, 1200), Rise(HIGH, 2400)],
    }


def test_thresholds_of_critical_and_high_have_no_effect():
    assert list(rises(HIGH, {HIGH: 1.0, CRITICAL: 1.0})) == []


@pytest.mark.parametrize("never", [None, math.inf, math.nan, MAX_SECONDS + 1, 1e300])
def test_without_a_threshold_the_chain_ends(never):
    thresholds = DEFAULTS | {LOW: never}
    assert list(rises(BACKGROUND, thresholds)) == [Rise(LOW, 600)]
    assert list(rises(LOW, thresholds)) == []
    assert list(rises(NORMAL, thresholds)) == [Rise(HIGH, 1200)]
    assert list(rises(LOW, {})) == []


thresholds = st.fixed_dictionaries({band: st.none() | st.floats(0, 1e6) for band in (NORMAL, LOW, BACKGROUND)})


@given(own=st.sampled_from(Band), ages=st.lists(st.floats(0, 1e7), min_size=2, max_size=5), waits=thresholds)
def test_a_task_only_ever_rises_and_never_to_critical(own, ages, waits):
    bands = [effective_band(own, NOW - timedelta(seconds=age), NOW, waits) for age in sorted(ages)]
    assert all(later <= earlier <= own for earlier, later in itertools.pairwise(bands))
    assert own is CRITICAL or min(bands) >= HIGH


@given(age=st.floats(0, 1e7), waits=thresholds)
def test_of_two_tasks_of_the_same_age_the_higher_band_stays_in_front(age, waits):
    bands = [effective_band(own, NOW - timedelta(seconds=age), NOW, waits) for own in Band]
    assert bands == sorted(bands)
