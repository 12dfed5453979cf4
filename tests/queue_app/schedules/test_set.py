"""Make, change and delete a schedule in code, at run time."""

from datetime import UTC, datetime, timedelta, timezone

import pytest
from asgiref.sync import async_to_sync

from queue_app.exceptions import InvalidTaskData, ScheduleNotFound
from queue_app.models import Schedule
from queue_app.schedules.edit import values_of
from queue_app.services import adelete_schedule, aset_schedule, delete_schedule, pause_schedule, set_schedule
from tests.support.engine import at_once
from tests.workers import chores

START = datetime(2040, 1, 1, tzinfo=timezone(timedelta(hours=1)))
OPTIONS = {
    "every": 60,
    "args": (1,),
    "starts_at": START,
    "grace_seconds": 5,
    "capabilities": ("gpu",),
    "priority": "high",
}


def test_the_same_call_again_changes_nothing(engine):
    set_schedule("of ada", chores.echo, **OPTIONS)
    before = Schedule.objects.values().get()
    set_schedule("of ada", chores.echo, **OPTIONS)
    assert Schedule.objects.values().get() == before
    assert (before["task_type"], before["args"], before["starts_at"]) == ("tests.workers.chores.echo", [1], START)
    assert (before["grace_seconds"], before["capabilities"], before["priority"]) == (5, ["gpu"], 1)


def test_another_call_changes_the_schedule_to_exactly_what_it_says(engine):
    set_schedule("of ada", chores.echo, **OPTIONS)
    pause_schedule("of ada")
    set_schedule("of ada", chores.echo, at=START, args=[2])
    schedule = Schedule.objects.get()
    assert (schedule.every, schedule.instants, schedule.next_instant) == (None, [START.isoformat()], START)
    assert (schedule.starts_at, schedule.grace_seconds, schedule.capabilities) == (None, 60, [])
    assert schedule.paused


def test_two_callers_make_one_schedule(engine):
    at_once([lambda: set_schedule("of ada", chores.echo, every=60, args=[1])] * 4)
    assert Schedule.objects.get().every == 60


def test_it_is_deleted(engine):
    set_schedule("of ada", chores.echo, every=60, args=[1])
    delete_schedule("of ada")
    with pytest.raises(ScheduleNotFound, match="There is no schedule 'of ada'"):
        delete_schedule("of ada")


@pytest.mark.parametrize(
    ("task", "options", "message"),
    [
        (chores.echo, {"args": [1]}, "Give one of cron, every"),
        (chores.echo, {"args": [1], "every": 60, "cron": "* * * * *"}, "Give one of cron, every"),
        (chores.echo, {"args": [1], "evry": 60}, "A schedule has no field 'evry'"),
        (chores.echo, {"every": 60}, "missing a required argument"),
        (print, {"every": 60}, "task must be a function with @task above it, not builtin_function_or_method"),
        (chores.echo, {"args": [1], "at": datetime(2020, 1, 1, tzinfo=UTC)}, "would never tick"),
    ],
)
def test_an_error_says_what_is_wrong(engine, task, options, message):
    with pytest.raises(InvalidTaskData, match=message):
        set_schedule("of ada", task, **options)
    assert not Schedule.objects.exists()


def test_a_schedule_that_the_code_declares_is_not_replaced(engine):
    schedule = set_schedule("of ada", chores.echo, every=60, args=[1])
    Schedule.objects.update(declaration=values_of(schedule))
    with pytest.raises(InvalidTaskData, match="change it there, or choose another name"):
        set_schedule("of ada", chores.echo, every=30, args=[1])


def test_coroutines_have_forms_of_their_own(engine):
    async_to_sync(aset_schedule)("of ada", chores.echo, every=60, args=[1])
    assert async_to_sync(adelete_schedule)("of ada").every == 60
