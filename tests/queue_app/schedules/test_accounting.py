"""Every instant is enqueued or recorded, whatever meets it: an edit, a backfill, an error, twenty schedulers."""

import random
from datetime import timedelta
from functools import partial

import pytest
from django.db import transaction

from queue_app.exceptions import InvalidTaskData
from queue_app.models import Schedule, ScheduleTick, Task, TaskPayload
from queue_app.schedules import backfill, tick
from queue_app.schedules.edit import create_schedule, give_back, update_schedule, values_of
from queue_app.schedules.pause import pause_schedule
from queue_app.schedules.tick import run_due
from queue_app.services.lifecycle.finish import finish
from tests.support.engine import at_once, done, rolled_back, take
from tests.support.schedules import ECHO, NOON, every_minute, minutes


def every_five_minutes(**values) -> Schedule:
    return every_minute(every=300, **values)


def history(name: str = "minutely") -> list[tuple[float, str, int]]:
    """Return (minute, "task" or the first word of the reason, number of instants) of the ticks, oldest first."""
    found = ScheduleTick.objects.filter(schedule__name=name).order_by("instant")
    return [
        ((each.instant - NOON).total_seconds() / 60, "task" if each.task_id else each.reason.split()[0], each.count)
        for each in found
    ]


def fill(start: float, end: float) -> None:
    """Backfill a range, as the scheduler does."""
    operation = backfill.start_backfill("minutely", minutes(start), minutes(end), by="ada")
    with transaction.atomic():
        backfill.fill(operation, [instant for _, instant in backfill.next_instants(operation, 1000)])


@pytest.mark.parametrize("catch_up", ["skip", "last", "all"])
def test_schedulers_with_clocks_astray_account_for_each_instant_once(engine, catch_up):
    random_ = random.Random(catch_up)
    every_minute(catch_up=catch_up, catch_up_limit=3, args=[], instant_parameter="value", jitter=45)
    now = 0.0
    for _ in range(5):
        now += random_.choice([0.2, 1, 5, 20])
        with rolled_back():  # killed before its commit
            run_due(now=minutes(now))
        at_once([partial(run_due, now=minutes(now - random_.uniform(0, 30))) for _ in range(4)])
        run_due(now=minutes(now))
    found = list(ScheduleTick.objects.order_by("instant"))
    firsts = [each.first_instant or each.instant for each in found]
    following = [*firsts[1:], Schedule.objects.get().next_instant]
    assert firsts[0] == minutes(1)
    assert [each.instant + timedelta(minutes=1) for each in found] == following
    assert sum(each.count for each in found) == (following[-1] - minutes(1)) / timedelta(minutes=1)
    values = [payload.parameters["value"] for payload in TaskPayload.objects.all()]
    assert sorted(values) == [each.instant.isoformat() for each in found if each.task_id]


# -- an edit -----------------------------------------------------------------------


def test_an_edit_of_the_times_loses_no_tick_that_was_missed(engine):
    every_minute()
    update_schedule("minutely", {"every": 3600}, now=minutes(5.5))
    assert history() == [(4, "Missed", 4), (5, "task", 1)]


def test_an_edit_of_the_times_loses_no_tick_that_jitter_puts_off(engine):
    due_at = every_minute(jitter=60).due_at
    update_schedule("minutely", {"jitter": 0}, now=minutes(1) + (due_at - minutes(1)) / 2)
    assert history() == [(1, "task", 1)]


def test_what_staff_give_back_loses_no_tick_that_was_missed(engine):
    Schedule.objects.update(declaration=values_of(every_minute()))
    give_back("minutely", now=minutes(5.5))
    assert history() == [(4, "Missed", 4), (5, "task", 1)]


def test_an_edit_that_is_refused_ticks_nothing(engine):
    every_minute()
    with pytest.raises(InvalidTaskData):
        update_schedule("minutely", {"every": 0}, now=minutes(5.5))
    assert not Task.objects.exists()


# -- a backfill --------------------------------------------------------------------


@pytest.mark.parametrize(("is_paused", "reason"), [(False, "Missed"), (True, "The")])
def test_a_backfill_ahead_hides_no_missed_tick(engine, is_paused, reason):
    every_five_minutes(catch_up="skip")
    if is_paused:
        pause_schedule("minutely")
    fill(25, 26)
    run_due(now=minutes(27))
    assert history() == [(20, reason, 4), (25, "task", 1)]


def test_a_backfill_of_the_newest_missed_tick_keeps_the_reason_of_the_others(engine):
    every_five_minutes(catch_up="skip")
    run_due(now=minutes(27))
    fill(25, 26)
    found = ScheduleTick.objects.get()
    assert (found.count, found.first_instant) == (5, minutes(5))
    assert found.reason.startswith("Backfilled by ada. The ticks before it: Missed by 120 s")


def test_a_tick_that_was_backfilled_is_in_nobodys_way(engine):
    worker = engine.worker(ECHO)
    every_minute(overlap="skip", catch_up="all")
    fill(1, 2)
    finish([done(task) for task in take(worker, 10)])
    run_due(now=minutes(2))
    assert history() == [(1, "task", 1), (2, "task", 1)]


@pytest.mark.parametrize("overlap", ["queue_one", "cancel_previous"])
def test_a_tick_does_not_overlap_its_own_backfill(engine, overlap):
    every_minute(overlap=overlap)
    fill(1, 2)
    run_due(now=minutes(1))
    assert Task.objects.get().status == "queued"
    assert Schedule.objects.get().held_instant is None


# -- errors and odd values ---------------------------------------------------------


def test_an_error_does_not_lose_the_tick_that_waits(engine, monkeypatch):
    worker = engine.worker(ECHO)
    every_minute(overlap="queue_one")
    run_due(now=minutes(1))
    run_due(now=minutes(2))
    finish([done(task) for task in take(worker, 10)])
    with monkeypatch.context() as broken:
        broken.setattr(tick, "plan", lambda *_, **_options: 1 / 0)
        run_due(now=minutes(2.5))
    run_due(now=minutes(3.6))
    assert history()[:2] == [(1, "task", 1), (2, "task", 1)]


def test_a_time_that_is_given_twice_ticks_once_and_stops_no_other_schedule(engine):
    every_minute()
    create_schedule("twice", {"task_type": ECHO, "args": [1], "instants": [minutes(1), minutes(1)]}, now=NOON)
    run_due(now=minutes(1))
    assert history() == history("twice") == [(1, "task", 1)]


@pytest.mark.parametrize("when", [{"every": 60}, {"cron": "* * * * *"}])
def test_jitter_never_puts_a_tick_behind_the_next_one(engine, when):
    with pytest.raises(InvalidTaskData, match="jitter must be at most 60"):
        create_schedule("minutely", {"task_type": ECHO, "args": [1], "jitter": 61} | when)
