"""How many tasks a worker claims ahead, depending on recent run times."""

from types import SimpleNamespace

import pytest

from queue_app.index import MAX_CLAIM
from queue_app.workers import claimer
from queue_app.workers.claimer import FORGET_SECONDS, Prefetch


@pytest.fixture
def clock(monkeypatch) -> list[float]:
    """The monotonic time of the module under test."""
    now = [1000.0]
    monkeypatch.setattr(claimer, "time", SimpleNamespace(monotonic=lambda: now[0]))
    return now


def test_it_claims_nothing_ahead_without_known_run_times():
    assert Prefetch(20, 5).allowance() == 0


@pytest.mark.parametrize(
    ("slots", "seconds", "allowance"),
    [(1, 0.001, 20), (5, 0.001, 100), (5, 0.02, 5), (1, 0.02, 1), (1, 0.021, 0), (5, 10, 0), (50, 0, MAX_CLAIM)],
)
def test_as_much_work_as_takes_the_budget(slots, seconds, allowance):
    ahead = Prefetch(20, slots)
    ahead.observe("a", seconds)
    assert ahead.allowance() == allowance


def test_the_slowest_type_counts():
    ahead = Prefetch(20, 5)
    ahead.observe("quick", 0.001)
    ahead.observe("slow", 3)
    assert ahead.allowance() == 0


def test_a_budget_of_nothing():
    ahead = Prefetch(0, 5)
    ahead.observe("a", 0.001)
    assert ahead.allowance() == 0


def test_a_run_that_is_much_slower_counts_in_full():
    ahead = Prefetch(20, 1)
    ahead.observe("a", 0.001)
    ahead.observe("a", 0.5)
    assert ahead.allowance() == 0


def test_a_slow_run_is_forgiven_gradually():
    ahead = Prefetch(20, 1)
    ahead.observe("a", 0.1)
    allowances = []
    for _ in range(60):
        ahead.observe("a", 0.000_1)
        allowances.append(ahead.allowance())
    assert allowances == sorted(allowances)
    assert allowances[0] == 0
    assert allowances[-1] > 20


def test_a_type_that_has_not_run_for_long_is_forgotten(clock):
    ahead = Prefetch(20, 1)
    ahead.observe("slow", 5)
    clock[0] += FORGET_SECONDS - 1
    ahead.observe("quick", 0.001)
    assert ahead.allowance() == 0
    clock[0] += 2
    assert ahead.allowance() == 20
    clock[0] += FORGET_SECONDS
    assert ahead.allowance() == 0


def test_types_met_without_having_run_here_stop_it(clock):
    ahead = Prefetch(20, 1)
    ahead.observe("quick", 0.001)
    ahead.distrust("new")
    assert ahead.allowance() == 0
    ahead.observe("new", 0.002)
    assert ahead.allowance() == 10
    ahead.distrust("new")
    clock[0] += FORGET_SECONDS - 1
    ahead.observe("quick", 0.001)
    clock[0] += 2
    assert ahead.allowance() == 20


@pytest.mark.parametrize(("seconds", "quick"), [(0.001, True), (0.02, True), (0.03, False)])
def test_quick(seconds, quick):
    ahead = Prefetch(20, 1)
    assert not ahead.is_quick("a")
    ahead.observe("a", seconds)
    assert ahead.is_quick("a") is quick


def test_max_wait_is_a_multiple_of_the_budget():
    assert Prefetch(20, 1).max_wait == 0.25
    assert Prefetch(100, 1).max_wait == 1.0
