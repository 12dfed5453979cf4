"""An edit of a schedule does not undo another that reached it first; JSON that no row can hold is refused."""

import pytest

from queue_app.models import Limit, Queue, Schedule, Task
from queue_app.registry import type_of
from queue_app.services.schedules.edit import create_schedule, update_schedule
from tests.workers import chores

ADMIN = "/admin/queue_app/"


@pytest.fixture
def schedule():
    return create_schedule("nightly", {"task_type": type_of(chores.echo), "args": [1], "every": 3600})


def form_of(staff, schedule):
    """Return what a browser would post of the page as it is now."""
    form = staff.get(f"{ADMIN}schedule/{schedule.pk}/change/").context["adminform"].form
    data = {}
    for name in form.fields:
        widget, value = form[name].field.widget, form[name].value()
        if hasattr(widget, "decompress"):
            data |= {f"{name}_{n}": part or "" for n, part in enumerate(widget.decompress(value))}
        elif name != "reason":
            data[name] = "" if value is None else value
    return data


def test_an_edit_that_saw_an_older_version_is_refused(staff, schedule):
    data = form_of(staff, schedule)
    update_schedule("nightly", {"every": 60})
    response = staff.post(f"{ADMIN}schedule/{schedule.pk}/change/", data | {"notes": "mine"})
    assert "The schedule was changed meanwhile" in response.content.decode()
    schedule.refresh_from_db()
    assert (schedule.every, schedule.notes) == (60, ""), "the other edit stays"
    fresh = form_of(staff, schedule)
    assert staff.post(f"{ADMIN}schedule/{schedule.pk}/change/", fresh | {"notes": "mine"}).status_code == 302
    schedule.refresh_from_db()
    assert (schedule.every, schedule.notes) == (60, "mine")


def test_a_form_without_a_version_is_refused(staff, schedule):
    data = form_of(staff, schedule)
    del data["version"]
    staff.post(f"{ADMIN}schedule/{schedule.pk}/change/", data | {"notes": "mine"})
    assert Schedule.objects.get().notes == ""


def test_a_schedule_runs_from_the_list(staff, client_of, schedule):
    page = staff.get(f"{ADMIN}schedule/").content.decode()
    assert f'formaction="{ADMIN}schedule/{schedule.pk}/run/"' in page
    response = staff.post(f"{ADMIN}schedule/{schedule.pk}/run/", {"next": "list"})
    assert response.headers["location"] == f"{ADMIN}schedule/"
    assert Task.objects.get().task_type == type_of(chores.echo)


@pytest.mark.parametrize("value", ['["\\ud800"]', '{"a": "\\udfff"}'])
def test_half_of_a_surrogate_pair_is_refused_and_shown_again(staff, schedule, value):
    data = form_of(staff, schedule) | {"args": value}
    response = staff.post(f"{ADMIN}schedule/{schedule.pk}/change/", data)
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
