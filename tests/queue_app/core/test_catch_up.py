"""Which of the ticks that are due run."""

from datetime import UTC, datetime, timedelta

import pytest

from queue_app.core.catch_up import COUNTED, Policy, plan
from queue_app.core.recurrence import Recurrence

MINUTELY = Recurrence(every=60)
NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
DAY = timedelta(days=1)


def planned(minutes_late: float, limit: int, window: timedelta = DAY, recurrence: Recurrence = MINUTELY):
    """Return (minutes of the ticks that run, minutes of the first and last missed one and their number, next)."""
    found = plan(recurrence, NOON, NOON + timedelta(minutes=minutes_late), Policy(limit, window))
    minutes = [(instant - NOON).total_seconds() / 60 for instant in found.run]
    missed = found.missed and (
        (found.missed.first - NOON).total_seconds() / 60,
        (found.missed.last - NOON).total_seconds() / 60,
        found.missed.number,
    )
    assert found.next_instant is None or found.next_instant > NOON + timedelta(minutes=minutes_late)
    return minutes, missed, found.is_late


@pytest.mark.parametrize("limit", [0, 1, 10])
def test_a_tick_on_time_runs_under_every_policy(limit):
    assert planned(0.01, limit) == ([0], None, False)


def test_before_its_time_nothing_is_due():
    found = plan(MINUTELY, NOON, NOON - timedelta(seconds=1), Policy(1, DAY))
    assert (found.run, found.missed, found.next_instant) == ([], None, NOON)


def test_after_an_outage_the_newest_runs_and_the_others_are_missed():
    assert planned(10.5, 1) == ([10], (0, 9, 10), False)


def test_without_catching_up_only_a_tick_on_time_runs():
    assert planned(10.5, 0) == ([10], (0, 9, 10), False)
    hourly = Recurrence(every=3600)
    assert planned(10.5, 0, recurrence=hourly) == ([], (0, 0, 1), True)


def test_catching_up_on_all_is_bounded_by_number_and_age():
    assert planned(10.5, 4) == ([7, 8, 9, 10], (0, 6, 7), False)
    assert planned(10.5, 100, timedelta(minutes=3)) == ([8, 9, 10], (0, 7, 8), False)
    assert planned(10.5, 100) == ([*range(11)], None, False)


def test_a_tick_on_time_runs_although_the_window_is_shorter_than_its_delay():
    assert planned(0.5, 1, timedelta(seconds=1)) == ([0], None, False)


def test_a_long_outage_is_not_counted_tick_by_tick():
    _run, missed, _late = planned(60 * 24 * 365, 1)
    assert missed == (0, 60 * 24 * 365 - 1, COUNTED + 7 * 24 * 60 - 1)


def test_jitter_puts_a_tick_off():
    late = plan(MINUTELY, NOON, NOON + timedelta(seconds=20), Policy(1, DAY), lambda _: timedelta(seconds=30))
    assert (late.run, late.next_instant) == ([], NOON)


def test_after_its_end_a_schedule_has_no_next_tick():
    once = Recurrence(instants=(NOON,))
    found = plan(once, NOON, NOON + timedelta(days=30), Policy(1, timedelta(days=60)))
    assert (found.run, found.is_late, found.next_instant) == ([NOON], True, None)
