"""Adaptive limits against a model downstream with a knee (``tests.support.downstream``), in simulated time."""

import random
from dataclasses import replace
from statistics import mean, pstdev

import pytest

from queue_app.adaptive.algorithm import (
    LEAST_SECONDS,
    MIN_TASKS,
    AdaptiveState,
    Bounds,
    Measurement,
    Sample,
    begin,
    step,
)
from tests.support.downstream import BEST, CAPACITY, SECONDS, Limit, p95, run, throughput

BOUNDS = Bounds(least=2, most=40)
EVEN = {"a": Sample(50, 0.19, 0.2, 0.21)}


def seen(running: float = 40, **given) -> Measurement:
    return Measurement(**{"now": 1000.0, "running": running, "samples": EVEN, "ended": 50} | given)


def settled(limit: float = 20) -> AdaptiveState:
    """A limit that has found its baseline."""
    return replace(begin(BOUNDS, 900.0), limit=limit, baselines={"a": 0.2}, is_starting=False, measure_at=5000.0)


def test_it_finds_the_knee_where_a_fixed_limit_collapses():
    fixed, found = Limit(is_adaptive=False), Limit()
    run(fixed, seconds=120)
    run(found, seconds=120)
    assert throughput(60, 120, fixed) < 0.2 * BEST
    assert throughput(60, 120, found) >= 0.9 * BEST
    assert p95(60, 120, found) <= 1.5 * SECONDS


def test_it_follows_a_capacity_that_is_halved_and_restored():
    limit = Limit()
    run(limit, seconds=500, noise=0.1, capacity=lambda now: CAPACITY / 2 if 200 <= now < 300 else CAPACITY)
    assert mean(limit.between(230, 300)) <= 1.25 * CAPACITY / 2
    assert mean(limit.between(420, 500)) >= 0.9 * CAPACITY
    assert throughput(420, 500, limit) >= 0.85 * BEST


@pytest.mark.parametrize("late", [0, 120])
def test_two_limits_on_one_downstream_share_it(late):
    one, other = Limit(), Limit(begins=late)
    run(one, other, seconds=600, noise=0.1)
    assert throughput(420, 600, one, other) >= 0.8 * BEST
    for limit in (one, other):
        assert throughput(420, 600, limit) >= 0.3 * throughput(420, 600, one, other)
        assert p95(420, 600, limit) <= 2 * SECONDS


def test_noise_does_not_make_it_swing():
    """The standard deviation of the value stays below a tenth of its mean, apart from measurements of the baseline."""
    limit = Limit()
    run(limit, seconds=700, noise=0.5)
    values = [value for value in limit.between(120, 700) if value > CAPACITY / 2]
    assert pstdev(values) <= 0.1 * mean(values)
    assert len(values) >= 0.95 * len(limit.between(120, 700))


def test_a_flat_load_below_the_capacity_leaves_it_still():
    limit = Limit(load=40)
    run(limit, seconds=600, noise=0.2)
    values = limit.between(120, 600)
    assert max(values) - min(values) <= 3, "it may rise when it is full for a moment"
    assert p95(120, 600, limit) <= 1.5 * SECONDS


def test_it_stays_within_its_bounds_whatever_is_seen():
    chance = random.Random(7)
    bounds = Bounds(least=3, most=9)
    state = begin(bounds, 0.0)
    for second in range(0, 3000, 3):
        middle = chance.choice([0.0, 1e-6, 0.2, 3.0, 900.0])
        sample = Sample(chance.randrange(200), middle * chance.random(), middle, middle * (1 + chance.random()))
        state = step(
            state,
            bounds,
            seen(
                chance.randrange(20),
                now=float(second),
                samples={chance.choice("abc"): sample},
                failures=chance.randrange(50),
                throttled=chance.random() < 0.1,
                load=chance.choice([None, 0.5, 1.5, 9.0]),
            ),
        )
        assert 3 <= state.value(bounds) <= 9
        assert AdaptiveState.load(state.dump()) == state


@pytest.mark.parametrize(
    ("signal", "cause"),
    [
        ({"throttled": True}, "throttle"),
        ({"failures": 20}, "failures"),
        ({"load": 1.2}, "probe"),
        ({"samples": {"a": Sample(50, 0.55, 0.6, 0.65)}}, "slow"),
    ],
)
def test_each_signal_lowers_it_and_is_named(signal, cause):
    after = step(settled(), BOUNDS, seen(20, **signal))
    assert after.value(BOUNDS) < 20
    assert after.cause == cause
    assert after.since == 1000.0


@pytest.mark.parametrize(
    ("signal", "cause"),
    [
        ({"samples": {"a": Sample(MIN_TASKS - 1, 0.19, 0.2, 0.21)}}, "few"),
        ({"running": 5}, "room"),
        ({"running": 5, "samples": {"a": Sample(50, 0.55, 0.6, 0.65)}}, "idle"),
        ({"load": 0.95}, "room"),
    ],
)
def test_it_stays_where_nothing_can_be_judged(signal, cause):
    after = step(settled(), BOUNDS, seen(**{"running": 20} | signal))
    assert (after.value(BOUNDS), after.cause) == (20, cause)


def test_failures_that_are_usual_do_not_lower_it():
    state = replace(settled(), failure_share=0.4)
    assert step(state, BOUNDS, seen(20, failures=22)).value(BOUNDS) >= 20


def test_run_times_that_depend_on_the_task_are_not_judged():
    wide = {"a": Sample(50, 0.1, 1.0, 3.0)}
    after = step(settled(), BOUNDS, seen(5, samples=wide))
    assert (after.value(BOUNDS), after.cause) == (20, "spread")
    named = {"a 1": Sample(25, 0.19, 0.2, 0.21), "a 2": Sample(25, 2.9, 3.0, 3.1)}
    known = replace(settled(), baselines={"a 1": 0.1, "a 2": 1.5})
    assert step(known, BOUNDS, seen(20, samples=named)).cause == "slow"


def test_the_reason_says_since_when():
    slow = {"a": Sample(50, 0.55, 0.6, 0.65)}
    after = step(settled(), BOUNDS, seen(20, samples=slow))
    later = step(after, BOUNDS, seen(20, samples=slow, now=1006.0))
    assert later.since == 1000.0
    assert later.reason == "Falling. Run times are 3.0 times their baseline, allowed 1.1."


@pytest.mark.parametrize(
    ("running", "decision"), [(20, "Rising. Run times are 1.0 times"), (5, "Held. It is not full: 5 run.")]
)
def test_the_reason_names_the_decision(running, decision):
    assert step(settled(), BOUNDS, seen(running)).reason.startswith(decision)


def test_at_the_most_it_is_held_although_run_times_allow_more():
    after = step(settled(BOUNDS.most), BOUNDS, seen(BOUNDS.most))
    assert after.reason == "Held. Run times are 1.0 times their baseline, allowed 1.1."


def test_failures_stay_the_reason_while_all_attempts_fail():
    """Once most attempts fail as usual, and none completes, the limit still says that, not that few tasks ran."""
    state, none = settled(), {}
    for second in range(0, 300, 3):
        ended = 0 if second % 9 == 6 else 400
        state = step(state, BOUNDS, seen(2, now=1000.0 + second, samples=none, ended=ended, failures=ended))
        assert "100% of the attempts failed." in state.reason
    assert state.value(BOUNDS) == BOUNDS.least
    assert state.reason == "Held. 100% of the attempts failed."
    back = step(state, BOUNDS, seen(2, now=1300.0))
    assert back.cause != "failures"


def test_run_times_that_stay_long_at_the_least_are_the_new_baseline():
    """A downstream that became slower for good must not hold the limit down for ever."""
    state, now, slow = settled(), 1000.0, {"a": Sample(50, 0.55, 0.6, 0.65)}
    while now < 1000 + 3 * LEAST_SECONDS:
        state = step(state, BOUNDS, seen(state.value(BOUNDS), samples=slow, now=now))
        now += 3
    assert state.baselines["a"] == pytest.approx(0.6)
    assert state.value(BOUNDS) > 10
