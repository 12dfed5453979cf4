"""Which of the ticks that are due run."""

from datetime import UTC, datetime, timedelta

import pytest

from queue_app.core.recurrence import COUNTED, Policy, Recurrence, plan

MINUTELY = Recurrence(every=60)
NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
DAY = timedelta(days=1)
MINUTE = timedelta(minutes=1)


def planned(
    minutes_late: float,
    limit: int,
    window: timedelta = DAY,
    recurrence: Recurrence = MINUTELY,
    grace: timedelta = MINUTE,
):
    """Return (minutes of the ticks that run, minutes of the first and last missed one and their number, is it late)."""
    found = plan(recurrence, NOON, NOON + timedelta(minutes=minutes_late), Policy(grace, limit, window))
    minutes = [(instant - NOON).total_seconds() / 60 for instant in (*found.caught_up, *found.run)]
    missed = found.missed and (
        (found.missed.first - NOON).total_seconds() / 60,
        (found.missed.last - NOON).total_seconds() / 60,
        found.missed.number,
    )
    assert found.next_instant is None or found.next_instant > NOON + timedelta(minutes=minutes_late)
    return minutes, missed, not found.run


@pytest.mark.parametrize("limit", [0, 1, 10])
def test_a_tick_on_time_runs_under_every_policy(limit):
    assert planned(0.01, limit) == ([0], None, False)


def test_before_its_time_nothing_is_due():
    found = plan(MINUTELY, NOON, NOON - timedelta(seconds=1), Policy(MINUTE, 1, DAY))
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


def test_catching_up_on_all_reaches_back_to_the_first_although_the_limit_allows_more():
    assert planned(7.5, 10) == ([*range(8)], None, False)


@pytest.mark.parametrize("limit", [0, 1, 10])
def test_a_tick_that_is_late_within_the_grace_runs_under_every_policy(limit):
    """As after a leader's death, with a tick each second."""
    secondly = Recurrence(every=1)
    run, missed, _late = planned(20.5 / 60, limit, recurrence=secondly)
    assert (len(run), missed) == (21, None)
    run, missed, _late = planned(20.5 / 60, limit, recurrence=secondly, grace=timedelta(seconds=5))
    assert len(run) == max(5, limit)
    assert missed[2] == 21 - len(run)


def test_a_tick_on_time_runs_although_the_window_is_shorter_than_its_delay():
    assert planned(0.5, 1, timedelta(seconds=1)) == ([0], None, False)


def test_a_long_outage_is_not_counted_tick_by_tick():
    _run, missed, _late = planned(60 * 24 * 365, 1)
    assert missed == (0, 60 * 24 * 365 - 1, COUNTED + 7 * 24 * 60 - 1)


def test_jitter_puts_a_tick_off():
    late = plan(MINUTELY, NOON, NOON + timedelta(seconds=20), Policy(MINUTE, 1, DAY), lambda _: timedelta(seconds=30))
    assert (late.run, late.next_instant) == ([], NOON)


def test_after_its_end_a_schedule_has_no_next_tick():
    once = Recurrence(instants=(NOON,))
    found = plan(once, NOON, NOON + timedelta(days=30), Policy(MINUTE, 1, timedelta(days=60)))
    assert (found.caught_up, found.run, found.next_instant) == ([NOON], [], None)
