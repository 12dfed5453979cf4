"""The index is compared first, then rebuilt, ever less often."""

from types import SimpleNamespace
from unittest.mock import Mock

import pytest

from queue_app.diagnose import watchdog as module
from queue_app.diagnose.watchdog import IndexRepair
from queue_app.exceptions import IndexUnavailable


class Clock:
    """Seconds that the test turns."""

    now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture(autouse=True)
def asked(monkeypatch) -> SimpleNamespace:
    """What the repair asks and does; a test sets what it answers."""
    answers = {"reconcile_everything": {}, "condemn": True, "rebuild_is_due": False, "rebuild_until_open": None}
    mocks = {name: Mock(return_value=answer) for name, answer in answers.items()}
    for name, mock in mocks.items():
        monkeypatch.setattr(module, name, mock)
    return SimpleNamespace(**mocks)


def steps(repair: IndexRepair, clock: Clock, seconds: float) -> list[tuple[str, float]]:
    """Return the steps, with their seconds, against a stall that lasts for so long."""
    found, began = [], clock.now
    while clock.now < began + seconds:
        if step := repair.step("it stands still"):
            found.append((step, clock.now - began))
        clock.now += 1
    return found


def rebuilds(found: list[tuple[str, float]]) -> list[float]:
    """Return when the index was rebuilt."""
    return [at for step, at in found if step == "rebuilt the index"]


def test_a_comparison_comes_first_then_rebuilds_that_become_rarer_down_to_one_an_hour(clock):
    found = steps(IndexRepair(clock), clock, 3 * 3600)
    assert found[0] == ("compared index and rows", 0)
    assert rebuilds(found) == [5, 65, 365, 1265, 4865, 8465]
    assert len(found) == 7


def test_the_next_stall_begins_with_a_comparison_again(clock):
    repair = IndexRepair(clock)
    assert len(steps(repair, clock, 100)) == 3
    repair.rest()
    assert steps(repair, clock, 10) == [("compared index and rows", 0), ("rebuilt the index", 5)]


def test_a_generation_that_must_not_be_condemned_now_is_tried_again(clock, asked):
    asked.condemn.side_effect = lambda _because: clock.now >= 1030
    assert rebuilds(steps(IndexRepair(clock), clock, 60)) == [30]


def test_an_index_that_was_condemned_by_an_error_is_built_anew(clock, asked):
    asked.condemn.return_value, asked.rebuild_is_due.return_value = False, True
    assert rebuilds(steps(IndexRepair(clock), clock, 60)) == [5]


def test_a_step_that_fails_is_logged_and_counts(clock, asked, caplog):
    asked.reconcile_everything.side_effect = asked.rebuild_until_open.side_effect = IndexUnavailable("gone")
    found = [step for step, _ in steps(IndexRepair(clock), clock, 10)]
    assert found == ["not compared index and rows: IndexUnavailable", "not rebuilt the index: IndexUnavailable"]
    assert "the watchdog has not compared index and rows" in caplog.text
