"""Forms with names to pick, and with a field for each parameter of a task's function."""

import json

import pytest
from django.urls import reverse

from queue_app.models import AuditEntry, Limit, Queue, Task, TaskPayload
from queue_app.registry import type_of
from tests.queue_app.admin.test_limits import fields
from tests.support.pages import log_in
from tests.workers import chores

TYPED = type_of(chores.typed)
NEW = reverse("admin:queue_app_task_new")


@pytest.fixture
def staff():
    return log_in("view_task", "add_task", "view_payload", "retry_task", "view_queue")


def text(response) -> str:
    return " ".join(response.content.decode().split())


def test_a_new_task_by_the_fields_of_its_function(engine, staff):
    assert NEW in text(staff.get(reverse("admin:queue_app_task_changelist")))
    page = text(staff.get(NEW, {"task_type": TYPED}))
    assert 'type="number" name="parameters-count"' in page
    assert '<option value="&quot;fast&quot;">fast</option>' in page
    given = {"parameters-count": "3", "parameters-mode": '"slow"', "parameters-options": "[1, 2]"}
    response = staff.post(NEW, {"task_type": TYPED, "priority": "high", "reason": "By hand."} | given)
    task = Task.objects.get()
    assert response.url == reverse("admin:queue_app_task_change", args=[task.pk])
    assert TaskPayload.objects.get(pk=task.pk).parameters == {"count": 3, "mode": "slow", "options": [1, 2]}
    assert (task.band.label, task.queue) == ("high", "default")
    assert AuditEntry.objects.get().reason == "By hand."


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"task_type": TYPED + "d"}, "Did you mean"),
        ({"queue": "nowhere"}, "There is no queue"),
        ({"parameters-count": "3.5"}, "count: Enter a whole number."),
        ({"parameters-count": ""}, "count: This field is required."),
        ({"parameters-mode": '"gentle"'}, "mode: Choose one of the values."),
        ({"parameters-options": "[1"}, "options: This is not JSON"),
    ],
)
def test_what_is_wrong_is_said_at_its_field(engine, staff, given, says):
    typed = {"task_type": TYPED, "parameters-count": "3", "parameters-mode": '"slow"'}
    assert says in text(staff.post(NEW, typed | given))
    assert not Task.objects.exists()


def test_it_takes_the_permission_to_submit_tasks(db):
    client = log_in("view_task")
    assert client.get(NEW).status_code == 403
    assert NEW not in text(client.get(reverse("admin:queue_app_task_changelist")))


def test_run_again_shows_each_argument_and_keeps_what_is_not_edited(engine, staff):
    """A value that fits no field of its annotation is JSON; one that is left as it is stays exactly the same."""
    stored = {"count": 1, "mode": "fast", "note": " two\nlines", "options": [2]}
    staff.post(NEW, {"task_type": TYPED, "parameters": json.dumps(stored)})
    first = Task.objects.get()
    page = reverse("admin:queue_app_task_run_again", args=[first.pk])
    shown = staff.get(page).context["form"]["parameters"].value()
    posted = {f"parameters-{name}": value for name, value in shown.items()} | {"parameters-count": "5"}
    posted["parameters-note"] = posted["parameters-note"].replace("\n", "\r\n")  # as browsers send it
    assert staff.post(page, posted).status_code == 302
    copy = Task.objects.exclude(pk=first.pk).get()
    assert TaskPayload.objects.get(pk=copy.pk).parameters == stored | {"count": 5}


def test_a_limit_of_an_unknown_type_is_refused_with_a_suggestion(db):
    client, add = log_in("view_limit", "add_limit"), reverse("admin:queue_app_limit_add")
    Queue.objects.get_or_create(name="mail")
    wrong = text(client.post(add, fields(scope="type", name=TYPED + "d", max_concurrent=3)))
    assert f"Did you mean &#x27;{TYPED}&#x27;" in wrong
    assert "manage.py taskqueue limit" in wrong
    assert client.post(add, fields(scope="type", name=TYPED, max_concurrent=3)).status_code == 302
    assert client.post(add, fields(scope="key", name="customer", max_concurrent=3)).status_code == 302, (
        "any key is right"
    )
    assert Limit.objects.count() == 2
