"""A pause passes over the ticks before its end, whoever looks when: a scheduler that ran, or one that starts later."""

from datetime import UTC, datetime, timedelta

import pytest

from queue_app.models import Schedule, ScheduleTick, Task
from queue_app.schedules import declare
from queue_app.schedules.edit import create_schedule, update_schedule
from queue_app.schedules.pause import pause_schedule, resume_schedule
from queue_app.schedules.tick import run_due
from queue_app.services.control.pause import resume_due
from tests.workers import chores

#: The first instant of the schedule is a minute later.
BEGIN = datetime.now(UTC) - timedelta(minutes=20)


def minutes(number: float) -> datetime:
    return BEGIN + timedelta(minutes=number)


@pytest.fixture
def paused(engine):
    """Return a function that makes a schedule, paused by ada until the twelfth of twenty minutes."""

    def make(**values) -> Schedule:
        wanted = {"task_type": "tests.workers.chores.echo", "args": [1], "every": 60, "anchor": BEGIN} | values
        create_schedule("minutely", wanted, now=BEGIN)
        pause_schedule("minutely", by="ada")
        Schedule.objects.update(resume_at=minutes(12))  # a pause can only be requested until a time to come
        return Schedule.objects.get()

    return make


def history() -> list[tuple[int, str, int]]:
    """Return (minute, what became of it, number of instants) of the ticks, oldest first."""
    return [
        (round((each.instant - BEGIN) / timedelta(minutes=1)), "task" if each.task_id else each.reason, each.count)
        for each in ScheduleTick.objects.order_by("instant")
    ]


PAUSED = (11, "The schedule was paused by ada.", 11)
MISSED = "Missed by 72 s; catch_up is"
AFTERWARDS = {
    "all": [(minute, "task", 1) for minute in range(12, 21)],
    "last": [(19, f"{MISSED} last.", 8), (20, "task", 1)],
    "skip": [(19, f"{MISSED} skip.", 8), (20, "task", 1)],
}


@pytest.mark.parametrize("catch_up", AFTERWARDS)
@pytest.mark.parametrize(
    "end",
    [
        lambda: None,
        resume_due,
        lambda: resume_schedule("minutely"),
        lambda: update_schedule("minutely", {"catch_up_seconds": 9000}, now=minutes(20)),
    ],
    ids=["the tick comes first", "the end comes first", "staff resume it", "staff edit it"],
)
def test_no_tick_of_a_pause_that_ended_without_a_scheduler_runs(paused, catch_up, end):
    paused(catch_up=catch_up)
    end()
    run_due(now=minutes(20.2))
    assert history() == [PAUSED, *AFTERWARDS[catch_up]]
    resume_due()
    assert not Schedule.objects.get().paused
    assert len(history()) == 1 + len(AFTERWARDS[catch_up])


def test_a_new_time_of_ticks_changes_nothing_that_was_paused_or_missed(paused):
    paused(catch_up="all")
    update_schedule("minutely", {"every": 3600, "anchor": None}, now=minutes(20.2))
    assert history() == [PAUSED, *AFTERWARDS["all"]]


def test_a_pause_that_staff_end_in_the_middle_counts_until_then(paused):
    paused(catch_up="all")
    resume_schedule("minutely", now=minutes(5.5))
    run_due(now=minutes(8.2))
    assert history() == [(5, PAUSED[1], 5), *((minute, "task", 1) for minute in (6, 7, 8))]


def test_a_pause_that_is_extended_passes_over_what_comes_until_its_new_end(paused):
    paused(catch_up="all")
    pause_schedule("minutely", by="bob", reason="Longer.")
    run_due(now=minutes(20.2))
    assert history() == [PAUSED, (20, "The schedule was paused by bob: Longer.", 9)]


def test_ticks_that_a_scheduler_passed_over_and_those_after_its_death_are_one_record(paused):
    paused()
    for minute in (1, 2, 3):
        run_due(now=minutes(minute))
    run_due(now=minutes(12.2))
    assert history() == [PAUSED, (12, "task", 1)]


def test_a_tick_that_jitter_puts_off_beyond_the_end_runs(paused):
    paused(jitter=60, ends_at=minutes(1.5))
    due_at = Schedule.objects.get().due_at
    Schedule.objects.update(resume_at=minutes(1) + (due_at - minutes(1)) / 2)
    resume_due()
    run_due(now=minutes(20))
    assert history() == [(1, "task", 1)]


def test_a_schedule_that_the_code_declares_again_catches_up_on_nothing(paused, monkeypatch):
    values = {"task_type": "tests.workers.chores.echo", "args": [1], "every": 60, "anchor": BEGIN, "catch_up": "all"}
    paused(catch_up="all")
    Schedule.objects.update(paused_by=declare.BY, resume_at=None)
    monkeypatch.setattr(declare.schedules, "declared", lambda: {"minutely": declare.Declaration("minutely", values)})
    declare.synchronise(now=minutes(9.5))
    run_due(now=minutes(10))
    assert history() == [(9, f"The schedule was paused by {declare.BY}.", 9), (10, "task", 1)]


def test_a_zone_that_this_machine_does_not_know_keeps_no_pause_from_its_end(paused, caplog):
    paused()
    Schedule.objects.update(every=None, anchor=None, cron="0 0 * * *", zone="Not/Known")
    resume_due()
    assert not Schedule.objects.get().paused
    assert "the ticks that the pause of the schedule minutely passed over cannot be recorded" in caplog.text
    assert not Task.objects.exists()


assert chores.echo  # registered by its import
