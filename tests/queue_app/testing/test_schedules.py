"""Declared schedules in tests of a project."""

from datetime import UTC, datetime, timedelta

import pytest

from queue_app import schedule, schedules
from queue_app.testing import assert_enqueued, assert_scheduled, drain, freeze, run_schedules
from tests.queue_app.testing.chores import note, render

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


@pytest.fixture(autouse=True)
def declared(monkeypatch, task_queue):
    monkeypatch.setattr(schedules, "_declared", {})
    schedule(name="hourly", cron="0 * * * *", zone="UTC", args=["hourly"], priority="high", queue="mail")(note)
    schedule(name="quarterly", every=900, instant_parameter="word")(note)


def test_schedules_tick_as_the_clock_moves():
    with freeze(NOON) as clock:
        assert run_schedules("hourly") == []
        clock.advance(timedelta(hours=2, minutes=5))
        first, second = run_schedules("hourly")
        assert (first.args, first.task.queue_name, first.task.priority) == (["hourly"], "mail", 50)
        assert run_schedules("hourly") == []
        assert_enqueued(note, args=["hourly"], count=2)
        drain()
        second.refresh()
        assert second.is_finished


def test_ticks_of_several_schedules_come_in_order():
    with freeze(NOON) as clock:
        clock.advance(3600)
        ticked = run_schedules()
        assert len(ticked) == 5
        assert ticked[0].kwargs == {"word": "2026-01-01T12:15:00+00:00"}


def test_mistakes_are_named():
    with pytest.raises(RuntimeError, match="with freeze"):
        run_schedules()
    with freeze(NOON), pytest.raises(LookupError, match="No schedule 'weekly' is declared; there are hourly, quart"):
        run_schedules("weekly")


def test_what_is_declared_can_be_asserted():
    assert assert_scheduled(note, cron="0 * * * *", priority="high").name == "hourly"
    assert_scheduled(note, name="quarterly", every=900)
    with pytest.raises(AssertionError, match=r"with cron='@daily'. Its schedules:\n  hourly: "):
        assert_scheduled(note, cron="@daily")
    with pytest.raises(AssertionError, match=r"with any time. Its schedules:\n  none"):
        assert_scheduled(render)
