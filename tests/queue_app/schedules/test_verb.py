"""``manage.py taskqueue schedule``."""

from datetime import timedelta

import pytest
from celery.schedules import crontab, schedule as interval
from django.test import override_settings

from queue_app.models import AuditEntry, Operation, Schedule, ScheduleTick, Task, TaskPayload
from tests.queue_app.management.test_taskqueue import call, read
from tests.workers import chores

ECHO = "tests.workers.chores.echo"


@pytest.fixture(autouse=True)
def nightly(engine):
    code, text = call("schedule", "add", "nightly", ECHO, "--cron", "0 3 * * *", "--zone", "Europe/Berlin",
                      "--param", "value=1", "--priority", "low", "--overlap", "skip")  # fmt: skip
    assert code == 0
    assert text.startswith("nightly: At 03:00 every day (Europe/Berlin); the next tick is at 20")


def test_add():
    stored = Schedule.objects.get()
    assert (stored.task_type, stored.parameters, stored.priority) == (ECHO, {"value": "1"}, 3)
    assert (stored.overlap, stored.queue) == ("skip", "default")
    assert AuditEntry.objects.get().target_id == "nightly"


def test_list():
    _code, text = call("schedule", "list")
    assert [line.split()[0] for line in text.splitlines()] == ["NAME", "nightly"]
    assert "At 03:00 every day" in text
    (found,) = read("schedule", "list")
    assert (found["name"], found["cron"], found["paused"]) == ("nightly", "0 3 * * *", False)


def test_pause_and_resume():
    assert call("schedule", "pause", "nightly", "--reason", "The bank is down.", "--as", "ada")[0] == 0
    assert Schedule.objects.get().paused_reason == "The bank is down."
    assert "paused by ada" in call("schedule", "list")[1]
    assert call("schedule", "resume", "nightly")[0] == 0
    assert not Schedule.objects.get().paused


def test_run_now():
    _code, text = call("schedule", "run", "nightly", "--as", "ada")
    assert str(Task.objects.get().id) == text.strip()
    assert TaskPayload.objects.get().parameters == {"value": "1"}
    assert ScheduleTick.objects.get().kind == "manual"


def test_backfill():
    range_ = ("--from", "2026-01-01T00:00Z", "--to", "2026-01-06T00:00Z")
    assert (
        "5 tasks would be enqueued: 2026-01-01 02:00:00"
        in call("schedule", "backfill", "nightly", *range_, "--dry-run")[1]
    )
    assert not Operation.objects.exists()
    code, text = call("schedule", "backfill", "nightly", *range_, "--reason", "The outage.")
    assert (code, Operation.objects.get().total) == (0, 5)
    assert "5 tasks" in text


def test_delete():
    assert call("schedule", "delete", "nightly")[0] == 0
    assert not Schedule.objects.exists()


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (("run",), 2, "needs the name"),
        (("run", "weekly"), 1, "There is no schedule 'weekly'"),
        (("add", "a"), 2, "needs a task_type"),
        (("add", "a", "tests.workers.chores.ekko", "--every", "60"), 2, "Did you mean"),
        (("add", "a", ECHO, "--every", "60"), 2, "missing a required argument: 'value'"),
        (("add", "a", ECHO, "--param", "value=1"), 2, "Give one of cron, every"),
        (("add", "a", ECHO, "--param", "value=1", "--cron", "@daily", "--zone", "Berlin"), 2, "not a time zone"),
        (("add", "a", ECHO, "--param", "value=1", "--cron", "0 0 31 2 *"), 2, "never ticks"),
        (("add", "a", ECHO, "--param", "value=1", "--at", "2020-01-01T00:00Z"), 2, "in the past"),
        (("add", "nightly", ECHO, "--param", "value=1", "--every", "60"), 2, "already exists"),
        (("add", "a", ECHO, "--param", "value=1", "--every", "60", "--jitter", "nan"), 2, "jitter must be at most"),
        (("backfill", "nightly"), 2, "needs --from and --to"),
        (("backfill", "nightly", "--from", "0001-01-01T00:00Z", "--to", "9999-12-31T00:00Z"), 2, "must lie between"),
    ],
)
def test_a_mistake_is_one_line(words, code, says):
    found, text = call("schedule", *words)
    assert found == code, text
    assert says in text
    assert Schedule.objects.count() == 1


# -- Celery beat -------------------------------------------------------------------

BEAT = {
    "every half minute": {"task": ECHO, "schedule": interval(30.0), "args": [1]},
    "on weekdays": {"task": ECHO, "schedule": crontab(hour=8, minute="*/15", day_of_week="mon-fri"), "args": (1,)},
    "hourly": {"task": ECHO, "schedule": timedelta(hours=1), "kwargs": {"value": 1}, "options": {"queue": "reports"}},
    "at sunset": {"task": ECHO, "schedule": object(), "args": (1,)},
    "with an expiry": {"task": ECHO, "schedule": 60, "args": (1,), "options": {"expires": 10}},
    "unknown": {"task": "nowhere.task", "schedule": 60},
}


@override_settings(CELERY_BEAT_SCHEDULE=BEAT)
def test_import_beat():
    assert "would import hourly" in call("schedule", "import-beat", "--dry-run")[1]
    assert Schedule.objects.count() == 1
    code, text = call("schedule", "import-beat")
    assert code == 1  # something could not be imported
    stored = {each.name: each for each in Schedule.objects.exclude(name="nightly")}
    assert set(stored) == {"every half minute", "on weekdays", "hourly"}
    assert stored["on weekdays"].cron == "*/15 8 * * mon-fri"
    assert (stored["every half minute"].every, stored["hourly"].every, stored["hourly"].queue) == (30, 3600, "reports")
    for name, why in (("at sunset", "only Celery has"), ("with an expiry", "expires"), ("unknown", "nowhere.task")):
        assert f"cannot import {name}: " in text
        assert why in text


def test_nothing_to_import():
    assert "there is nothing to import" in call("schedule", "import-beat")[1]


assert chores.echo  # registered by its import
