"""The pages of schedules."""

from datetime import UTC, datetime, timedelta

import pytest
from django.test import Client
from django.urls import reverse

from queue_app.models import AuditEntry, Limit, Operation, Queue, Schedule, ScheduleTick, Task
from queue_app.registry import type_of
from queue_app.schedules.edit import create_schedule, update_schedule, version_of
from queue_app.schedules.tick import run_due
from tests.support.pages import log_in
from tests.workers import chores

ECHO = "tests.workers.chores.echo"
NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
ALL = [f"{verb}_schedule" for verb in ("view", "add", "change", "delete", "pause", "run")]
FORM = {
    "name": "nightly", "task_type": ECHO, "args": "[1]", "parameters": "{}", "instant_parameter": "",
    "cron": "0 3 * * *", "zone": "Europe/Berlin", "every": "", "anchor_0": "", "anchor_1": "", "instants": "[]",
    "starts_at_0": "", "starts_at_1": "", "ends_at_0": "", "ends_at_1": "", "jitter": "0", "grace_seconds": "60",
    "catch_up": "last", "catch_up_limit": "10", "catch_up_seconds": "86400", "overlap": "allow", "queue": "",
    "priority": "", "user": "", "concurrency_key": "", "weight": "", "capabilities": "", "max_retries": "",
    "timeout": "", "retry_delay": "",
    "notes": "", "reason": "",
}  # fmt: skip


def url(name: str, *args) -> str:
    return reverse(f"admin:queue_app_schedule_{name}", args=args)


@pytest.fixture
def admin() -> Client:
    return log_in(*ALL, "view_payload", "view_task")


@pytest.fixture
def schedule() -> Schedule:
    return create_schedule("minutely", {"task_type": ECHO, "args": [1], "every": 60}, now=NOON)


def text(response) -> str:
    return " ".join(response.content.decode().split())


def test_add(admin):
    response = admin.post(url("add"), FORM, follow=True)
    assert response.status_code == 200
    made = Schedule.objects.get()
    assert (made.name, made.cron, made.zone, made.args) == ("nightly", "0 3 * * *", "Europe/Berlin", [1])
    assert (made.queue, made.priority, made.weight) == ("default", 2, 1)  # of the task
    assert made.next_instant is not None
    assert AuditEntry.objects.get().action == "schedule.add"


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"cron": "0 0 30 2 *"}, "never ticks"),
        ({"cron": "* * * * * *"}, "ticks every second"),
        ({"zone": "Berlin"}, "is not a time zone"),
        ({"every": "60"}, "Give one of cron, every"),
        ({"task_type": "tests.workers.chores.ekko"}, "Did you mean"),
        ({"args": "[]"}, "missing a required argument"),
        ({"cron": "", "instants": '["2020-01-01T00:00:00Z"]'}, "in the past"),
        ({"cron": "", "instants": '["tomorrow"]'}, "must be a list of times"),
        ({"name": ""}, "This field is required"),
        ({"name": "a\u202eb"}, "invisible characters"),
        ({"args": "0.5"}, "A JSON list, or an object"),
        ({"queue": "defualt"}, "Nothing has the name &#x27;defualt&#x27;."),
        ({"capabilities": "gpx"}, "Nothing has the name &#x27;gpx&#x27;."),
        ({"repeats": "daily", "at": ""}, "This field is required"),
        ({"repeats": "weekly", "at": "02:00"}, "This field is required"),
        ({"repeats": "daily", "at": "02:00"}, "You wrote something under More too"),
        ({"jitter": "1e308"}, "jitter must be at most"),
        ({"starts_at_0": "9999-12-31", "starts_at_1": "10:00"}, "must lie between"),
        ({"cron": "", "instants": '["9999-12-31T23:59:59-14:00"]'}, "must lie between"),
    ],
)
def test_a_mistake_is_shown_in_the_form(admin, changes, says):
    response = admin.post(url("add"), FORM | changes)
    assert response.status_code == 200
    assert says in text(response)
    assert not Schedule.objects.exists()


@pytest.mark.parametrize(
    ("fields", "cron", "every", "words"),
    [
        ({"repeats": "daily", "at": "02:00"}, "0 2 * * *", None, "At 02:00"),
        ({"repeats": "weekdays", "at": "08:30"}, "30 8 * * MON-FRI", None, "Monday through Friday"),
        ({"repeats": "weekly", "days": ["1", "4"], "at": "02:00"}, "0 2 * * 1,4", None, "Monday"),
        ({"repeats": "monthly", "day": "L", "at": "23:15"}, "15 23 L * *", None, "last day"),
        ({"repeats": "interval", "number": "2", "unit": "3600"}, "", 7200, "2 h"),
    ],
)
def test_when_is_said_by_fields_and_cron_follows_from_them(admin, fields, cron, every, words):
    data = FORM | {"cron": ""} | fields
    assert words.lower() in text(admin.post(url("preview"), data)).lower()
    assert admin.post(url("add"), data).status_code == 302
    made = Schedule.objects.get()
    assert (made.cron, made.every, made.zone) == (cron, every, "Europe/Berlin")
    form = admin.get(url("change", made.pk)).context["adminform"].form
    shown = {name: form[name].value() for name in fields}
    assert {name: shown[name] if isinstance(shown[name], list) else str(shown[name]) for name in shown} == fields


def test_the_parameters_of_a_new_schedule_are_fields_by_the_function(admin):
    typed = type_of(chores.typed)
    page = text(admin.get(url("add"), {"task_type": typed}))
    assert 'name="parameters-count" ' in page
    assert "whole number" in page
    data = {name: value for name, value in FORM.items() if name not in {"args", "parameters"}} | {"task_type": typed}
    wrong = text(admin.post(url("add"), data | {"parameters-count": "many", "parameters-mode": '"fast"'}))
    assert "count: Enter a whole number." in wrong
    assert 'value="many"' in wrong
    given = {"parameters-count": "3", "parameters-mode": '"fast"', "parameters-note": "", "parameters-options": "[1]"}
    assert admin.post(url("add"), data | given).status_code == 302
    assert Schedule.objects.get().parameters == {"count": 3, "mode": "fast", "options": [1]}


def test_names_are_picked_from_lists(admin):
    Queue.objects.create(name="mail")
    page = text(admin.get(url("add")))
    assert '<option value="mail">' not in page, "it takes the permission to view queues"
    for name in ("Europe/Berlin", ECHO):
        assert f'<option value="{name}">' in page
    assert '<option value="mail">' in text(log_in(*ALL, "view_payload", "view_queue").get(url("add")))


def test_change(admin, schedule):
    page = admin.get(url("change", schedule.pk))
    assert "Every minute" in text(page)
    data = FORM | {"cron": "", "every": "3600", "zone": "UTC", "queue": "default", "priority": "3", "weight": "1"}
    del data["name"]
    data |= {"reason": "Too often.", "version": version_of(schedule)}
    response = admin.post(url("change", schedule.pk), data, follow=True)
    assert response.status_code == 200
    schedule.refresh_from_db()
    assert (schedule.every, schedule.priority) == (3600, 3)
    entry = AuditEntry.objects.get()
    assert (entry.action, entry.reason) == ("schedule.edit", "Too often.")


def test_parameters_are_hidden_from_those_who_may_not_read_them(schedule):
    Schedule.objects.update(args=["canary-7"])
    changer = log_in("view_schedule", "change_schedule")
    assert "canary-7" not in text(changer.get(url("change", schedule.pk)))
    data = {name: value for name, value in FORM.items() if name not in {"name", "args", "parameters"}}
    schedule.refresh_from_db()
    data |= {"cron": "", "every": "120", "version": version_of(schedule)}
    changer.post(url("change", schedule.pk), data)
    schedule.refresh_from_db()
    assert (schedule.every, schedule.args) == (120, ["canary-7"])


def test_the_list_and_the_page_show_what_ran_and_what_comes(admin, schedule):
    for minute in (1, 2, 3):
        run_due(now=NOON + timedelta(minutes=minute))
    Task.objects.update(status="completed", finished_at=NOON)
    listed = text(admin.get(url("changelist")))
    assert 'aria-label="last 3: 3 completed"' in listed
    assert "echo: Every minute" in listed
    page = text(admin.get(url("change", schedule.pk)))
    assert page.count("tq-status-completed") == 3


def test_three_failures_in_a_row_are_said(admin, schedule):
    for minute in (1, 2, 3):
        run_due(now=NOON + timedelta(minutes=minute))
    ScheduleTick.objects.update(outcome="failed")
    assert "It has failed 3 times in a row." in text(admin.get(url("change", schedule.pk)))


def test_the_list_leads_to_the_upkeep_jobs(schedule):
    link = "/admin/queue_app/maintenancejob/"
    assert f'<li><a href="{link}">Upkeep jobs</a></li>' in text(
        log_in(*ALL, "view_maintenancejob").get(url("changelist"))
    )
    assert "Upkeep jobs" not in text(log_in(*ALL).get(url("changelist")))


def test_run_now(admin, schedule):
    response = admin.post(url("run", schedule.pk), {"reason": "The customer waits."}, follow=True)
    assert f"Enqueued the task {Task.objects.get().id}" in text(response)
    assert AuditEntry.objects.get().reason == "The customer waits."


def test_pause_and_resume(admin, schedule):
    admin.post(url("pause", schedule.pk), {"reason": "The bank is down.", "seconds": "900"})
    schedule.refresh_from_db()
    assert (schedule.paused, schedule.paused_reason) == (True, "The bank is down.")
    admin.post(url("resume", schedule.pk), {})
    schedule.refresh_from_db()
    assert not schedule.paused


def test_backfill_shows_its_size_before_it_starts(admin, schedule):
    data = {"start_0": "2026-01-01", "start_1": "10:00", "end_0": "2026-01-01", "end_1": "10:05", "reason": "Outage."}
    assert "5 tasks would be enqueued" in text(admin.post(url("backfill", schedule.pk), data))
    assert not Operation.objects.exists()
    admin.post(url("backfill", schedule.pk), data | {"start_it": "Start"})
    operation = Operation.objects.get()
    assert (operation.kind, operation.total, operation.reason) == ("backfill", 5, "Outage.")


def test_delete_but_not_what_the_code_declares(admin, schedule):
    Schedule.objects.update(declaration={})
    assert "is declared in the code" in text(admin.get(url("delete", schedule.pk)))
    Schedule.objects.update(declaration=None)
    admin.post(url("delete", schedule.pk), {"post": "yes"})
    assert not Schedule.objects.exists()


def test_what_staff_changed_can_be_given_back(admin, schedule):
    from queue_app.schedules.edit import update_schedule, values_of  # noqa: PLC0415

    Schedule.objects.update(declaration=values_of(schedule))
    update_schedule("minutely", {"every": 120})
    assert "Changed by staff, against the code: every." in text(admin.get(url("change", schedule.pk)))
    admin.post(url("give_back", schedule.pk))
    schedule.refresh_from_db()
    assert schedule.every == 60


def test_the_preview_says_in_words_what_comes(admin):
    shown = text(admin.post(url("preview"), FORM, headers={"X-Requested-With": "fetch"}))
    assert "<strong>At 03:00 every day (Europe/Berlin)</strong>" in shown
    assert shown.count("<li>") == 10
    assert "never ticks" in text(admin.post(url("preview"), FORM | {"cron": "0 0 31 2 *"}))
    assert "<h1>The next ten ticks</h1>" in text(admin.post(url("preview"), FORM))  # a page of its own, without script


def test_the_week_shows_what_ticks_when(admin, schedule):
    for number in range(3):
        create_schedule(f"nightly {number}", {"task_type": ECHO, "args": [1], "cron": "0 3 * * *"})
    page = text(admin.get(url("week")))
    assert "At most 3 schedules tick at the same moment." in page
    assert "More often than every two hours" in page
    assert "nightly 0 03:00" in page
    assert ">03:00</th>" in page
    assert ">04:00</th>" not in page, "nothing ticks then"


def test_each_page_needs_its_permission(schedule):
    viewer = log_in("view_schedule")
    assert viewer.get(url("changelist")).status_code == 200
    assert viewer.get(url("week")).status_code == 200
    for name in ("run", "pause", "resume", "give_back", "backfill"):
        assert viewer.post(url(name, schedule.pk)).status_code == 403, name
    assert viewer.post(url("preview"), FORM).status_code == 403
    assert log_in("view_task").get(url("week")).status_code == 403


assert chores.echo  # registered by its import


# -- edits that meet -------------------------------------------------------------------------------------------------


ADMIN = "/admin/queue_app/"


@pytest.fixture
def nightly():
    return create_schedule("nightly", {"task_type": type_of(chores.echo), "args": [1], "every": 3600})


def form_of(staff, nightly):
    """Return what a browser would post of the page as it is now."""
    form = staff.get(f"{ADMIN}schedule/{nightly.pk}/change/").context["adminform"].form
    data = {}
    for name in form.fields:
        widget, value = form[name].field.widget, form[name].value()
        if hasattr(widget, "decompress"):
            data |= {f"{name}_{n}": part or "" for n, part in enumerate(widget.decompress(value))}
        elif isinstance(value, dict):
            data |= {f"{name}-{part}": text for part, text in value.items()}
        elif name != "reason":
            data[name] = ([] if getattr(widget, "allow_multiple_selected", False) else "") if value is None else value
    return data


def test_an_edit_that_saw_an_older_version_is_refused(staff, nightly):
    data = form_of(staff, nightly)
    update_schedule("nightly", {"every": 60})
    response = staff.post(f"{ADMIN}schedule/{nightly.pk}/change/", data | {"notes": "mine"})
    assert "The schedule was changed meanwhile" in response.content.decode()
    nightly.refresh_from_db()
    assert (nightly.every, nightly.notes) == (60, ""), "the other edit stays"
    fresh = form_of(staff, nightly)
    assert staff.post(f"{ADMIN}schedule/{nightly.pk}/change/", fresh | {"notes": "mine"}).status_code == 302
    nightly.refresh_from_db()
    assert (nightly.every, nightly.notes) == (60, "mine")


def test_a_form_without_a_version_is_refused(staff, nightly):
    data = form_of(staff, nightly)
    del data["version"]
    staff.post(f"{ADMIN}schedule/{nightly.pk}/change/", data | {"notes": "mine"})
    assert Schedule.objects.get().notes == ""


def test_a_schedule_runs_from_the_list(staff, client_of, nightly):
    page = staff.get(f"{ADMIN}schedule/").content.decode()
    assert f'formaction="{ADMIN}schedule/{nightly.pk}/run/"' in page
    response = staff.post(f"{ADMIN}schedule/{nightly.pk}/run/", {"next": "list"})
    assert response.headers["location"] == f"{ADMIN}schedule/"
    assert Task.objects.get().task_type == type_of(chores.echo)


@pytest.mark.parametrize("value", ['["\\ud800"]', '{"a": "\\udfff"}'])
def test_half_of_a_surrogate_pair_is_refused_and_shown_again(staff, nightly, value):
    data = form_of(staff, nightly) | {"args": value}
    response = staff.post(f"{ADMIN}schedule/{nightly.pk}/change/", data)
    assert response.status_code == 200
    assert "half of a surrogate pair" in response.content.decode()
    Queue.objects.create(name="mail")
    response = staff.post(f"{ADMIN}queue/mail/change/", {"order": "fifo", "fair_by": "user", "fair_weights": value})
    assert response.status_code == 200
    assert not Limit.objects.exists()


def test_edited_parameters_with_half_of_a_pair_are_refused(staff, make_task, end_task, monkeypatch):
    task = end_task(make_task(), "failed", error="no")
    response = staff.post(f"{ADMIN}task/{task.pk}/run-again/", {"parameters": '{"a": "\\ud800"}'})
    assert "half of a surrogate pair" in response.content.decode()
    assert Task.objects.count() == 1
