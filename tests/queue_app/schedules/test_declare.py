"""Schedules that the code declares."""

import logging
from datetime import UTC, datetime

import pytest
from django.test import override_settings

from queue_app import schedule, schedules
from queue_app.exceptions import InvalidTaskData
from queue_app.models import Schedule
from queue_app.schedules import Declaration
from queue_app.schedules.declare import GONE, synchronise
from queue_app.schedules.edit import create_schedule, delete_schedule, give_back, overridden, update_schedule
from queue_app.schedules.pause import pause_schedule, resume_schedule
from queue_app.schedules.tick import run_due
from tests.support.schedules import ECHO, NOON, minutes
from tests.workers import chores

HOURLY = {"task_type": ECHO, "args": [1], "cron": "0 * * * *", "zone": "UTC"}


@pytest.fixture
def code(monkeypatch, rows):
    """What the code declares: {name: values}."""
    declared: dict[str, dict] = {}
    monkeypatch.setattr(
        schedules, "declared", lambda: {name: Declaration(name, values) for name, values in declared.items()}
    )
    return declared


def version(code, **changes):
    """Replace what the code declares, as a deployment does."""
    code.clear()
    code.update(changes)


def test_declarations_are_stored_and_follow_the_code(code):
    version(code, hourly=HOURLY)
    assert synchronise(now=NOON) == ["hourly"]
    assert synchronise(now=minutes(1)) == []
    stored = Schedule.objects.get()
    assert (stored.cron, stored.queue, stored.args, stored.next_instant) == ("0 * * * *", "default", [1], minutes(60))
    version(code, hourly=HOURLY | {"cron": "30 * * * *"})
    assert synchronise(now=minutes(2)) == ["hourly"]
    assert Schedule.objects.get().next_instant == minutes(30)


def test_what_staff_changed_stays_until_they_give_it_back(code):
    version(code, hourly=HOURLY)
    synchronise(now=NOON)
    update_schedule("hourly", {"args": [7]}, now=minutes(1))
    assert overridden(Schedule.objects.get()) == ["args"]
    version(code, hourly=HOURLY | {"args": [2], "cron": "30 * * * *"})
    synchronise(now=minutes(2))
    stored = Schedule.objects.get()
    assert (stored.args, stored.cron, overridden(stored)) == ([7], "30 * * * *", ["args"])
    stored = give_back("hourly", now=minutes(3))
    assert (stored.args, overridden(stored)) == ([2], [])


def test_a_field_that_the_former_version_did_not_know_follows_the_code(code):
    version(code, hourly=HOURLY)
    synchronise(now=NOON)
    former = Schedule.objects.get().declaration
    del former["grace_seconds"]
    Schedule.objects.update(declaration=former)
    version(code, hourly=HOURLY | {"grace_seconds": 900})
    synchronise(now=minutes(1))
    stored = Schedule.objects.get()
    assert (stored.grace_seconds, overridden(stored)) == (900, [])


def test_a_schedule_that_is_gone_from_the_code_is_paused_and_comes_back(code):
    version(code, hourly=HOURLY, other=HOURLY)
    synchronise(now=NOON)
    version(code, other=HOURLY)
    assert synchronise(now=minutes(1)) == ["hourly"]
    gone = Schedule.objects.get(name="hourly")
    assert (gone.paused, gone.paused_by, gone.declaration) == (True, "the code", None)
    assert "no longer declared" in gone.paused_reason
    version(code, hourly=HOURLY, other=HOURLY | {"args": [2]})
    synchronise(now=minutes(2))
    assert Schedule.objects.filter(paused=False, declaration__isnull=False).count() == 2


def test_staff_may_go_on_with_a_schedule_that_is_gone_from_the_code(code):
    version(code, hourly=HOURLY)
    synchronise(now=NOON)
    version(code)
    synchronise(now=minutes(1))
    resume_schedule("hourly")
    version(code, another=HOURLY)
    synchronise(now=minutes(2))
    assert Schedule.objects.get(name="hourly").paused is False


def test_a_pause_by_staff_survives_a_deployment(code):
    version(code, hourly=HOURLY)
    synchronise(now=NOON)
    pause_schedule("hourly", by="ada")
    version(code, hourly=HOURLY | {"args": [2]})
    synchronise(now=minutes(1))
    stored = Schedule.objects.get()
    assert (stored.paused, stored.args) == (True, [2])


def test_two_versions_side_by_side_do_not_fight(code):
    """While a deployment rolls, the newer version is in force, whichever process starts or reports."""
    old, new = {"hourly": HOURLY}, {"hourly": HOURLY | {"cron": "30 * * * *"}, "added": HOURLY}
    version(code, **old)
    synchronise(now=NOON)
    for minute in range(1, 20):
        version(code, **(new if minute % 2 else old))
        synchronise(now=minutes(minute))
        assert Schedule.objects.get(name="hourly").cron == "30 * * * *"
        assert Schedule.objects.filter(paused=False).count() == 2


@pytest.mark.parametrize("how", [{"now": minutes(2) + GONE}, {"now": minutes(2), "force": True}])
def test_a_roll_back_takes_effect_when_the_newer_version_is_gone_or_by_force(code, how):
    old, new = {"hourly": HOURLY}, {"hourly": HOURLY | {"cron": "30 * * * *"}}
    version(code, **old)
    synchronise(now=NOON)
    version(code, **new)
    synchronise(now=minutes(1))
    version(code, **old)
    synchronise(now=minutes(2))
    assert Schedule.objects.get().cron == "30 * * * *"
    assert synchronise(**how) == ["hourly"]
    assert Schedule.objects.get().cron == "0 * * * *"


def test_an_invalid_declaration_is_logged_and_the_others_are_stored(code, caplog):
    version(code, bad=HOURLY | {"cron": "0 0 30 2 *"}, sound=HOURLY, unknown=HOURLY | {"task_type": "nowhere.task"})
    with caplog.at_level(logging.ERROR, "taskqueue"):
        assert synchronise(now=NOON) == ["sound"]
    assert "the schedule bad is declared with an invalid cron" in caplog.text
    assert "the schedule unknown is declared with an invalid task_type" in caplog.text


def test_a_declaration_takes_over_a_schedule_that_staff_made(code):
    create_schedule("hourly", HOURLY | {"args": [9]}, now=NOON)
    version(code, hourly=HOURLY)
    synchronise(now=minutes(1))
    stored = Schedule.objects.get()
    assert (stored.args, overridden(stored)) == ([9], ["args"])
    with pytest.raises(InvalidTaskData, match="declared in the code"):
        delete_schedule("hourly")


def test_a_new_version_keeps_the_ticks_that_are_due(code):
    version(code, hourly=HOURLY)
    synchronise(now=NOON)
    version(code, hourly=HOURLY | {"args": [2]})
    synchronise(now=minutes(61))  # the code changed after the tick, and before a scheduler looked
    assert run_due(now=minutes(62)) == 1


# -- how the code declares ---------------------------------------------------------


@pytest.fixture
def nothing_declared(monkeypatch):
    monkeypatch.setattr(schedules, "_declared", {})


def test_the_decorator(nothing_declared):
    times = datetime(2030, 1, 1, tzinfo=UTC)
    same = schedule(cron="*/15 * * * *", zone="Europe/Berlin", args=[1])(
        schedule(name="once", at=times, queue="reports")(chores.echo)
    )
    assert same is chores.echo
    found = schedules.declared()
    assert found["echo"].values == {
        "task_type": ECHO, "cron": "*/15 * * * *", "zone": "Europe/Berlin", "args": [1]
    }  # fmt: skip
    assert found["once"].values["instants"] == [times]


def test_two_tasks_need_two_names(nothing_declared):
    schedule(name="nightly", every=60)(chores.echo)
    with pytest.raises(InvalidTaskData, match="give one of them a name"):
        schedule(name="nightly", every=60)(chores.quick)
    with pytest.raises(TypeError, match="above @task"):
        schedule(every=60)(lambda: None)


def test_the_setting(nothing_declared, settings, rows):
    with override_settings(
        TASKQUEUE=settings.TASKQUEUE | {"SCHEDULES": {"nightly": {"task": ECHO, "args": [1], "cron": "0 3 * * *"}}},
        TIME_ZONE="Europe/Berlin",
    ):
        assert synchronise(now=NOON) == ["nightly"]
    stored = Schedule.objects.get()
    assert (stored.cron, stored.zone) == ("0 3 * * *", "Europe/Berlin")
