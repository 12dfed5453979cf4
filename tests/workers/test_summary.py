"""The line about what was done: a second after a pause, then once a minute."""

import logging

import pytest

from queue_app.workers import summary as module
from queue_app.workers.summary import Summary


class Clock:
    """Stands still until the test moves it."""

    now = 1000.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch):
    made = Clock()
    monkeypatch.setattr(module, "time", made)
    return made


@pytest.fixture
def lines(caplog, clock):
    caplog.set_level(logging.INFO, "taskqueue")
    return lambda: caplog.messages


def test_the_first_line_comes_after_a_second_and_the_next_after_a_minute(clock, lines):
    summary = Summary()
    assert summary.due_in() is None
    summary.add("completed", task_type="shop.pay")
    assert summary.due_in() == 1
    summary.log_if_due()
    assert lines() == []
    clock.now += 1
    summary.add("failed", task_type="shop.mail")
    summary.log_if_due(running=2)
    assert lines() == ["done in 1 s: 1 completed, 1 failed (shop.pay 1, shop.mail 1); 2 running"]
    summary.add("completed", 3, "shop.pay")
    assert summary.due_in() == 60
    clock.now += 60
    summary.log_if_due()
    assert lines()[1:] == ["done in 60 s: 3 completed (shop.pay 3)"]
    assert summary.totals == {"completed": 4, "failed": 1}


def test_after_a_pause_the_line_covers_the_time_since_its_end(clock, lines):
    summary = Summary()
    clock.now += 3600
    summary.add("became due", 7)
    clock.now += 1
    summary.log_if_due()
    assert lines() == ["done in 1 s: 7 became due"]
    summary.log_if_due()
    assert len(lines()) == 1, "there is nothing new"


def test_a_line_names_the_most_frequent_types(clock, lines):
    summary = Summary()
    for number in range(5):
        summary.add("completed", number + 1, f"type{number}")
    clock.now += 1
    summary.log_if_due()
    assert lines() == ["done in 1 s: 15 completed (type4 5, type3 4, type2 3 and 2 more)"]
