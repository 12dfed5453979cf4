"""The groups that the migration creates, and their permissions."""

from importlib import import_module

import pytest
from django.apps import apps
from django.contrib.auth.models import Group, User
from django.test import Client

_defaults = import_module("queue_app.migrations.0002_defaults")
GROUPS = _defaults.GROUPS
MAY = {
    "Task queue: Viewer": set(),
    "Task queue: Operator": {"cancel", "pause", "payload"},
    "Task queue: Admin": {"cancel", "pause", "payload", "edit"},
}


@pytest.fixture
def groups(db):
    Group.objects.filter(name__in=GROUPS).delete()
    assert _defaults.create_groups(apps, "default") == list(GROUPS)


@pytest.mark.parametrize("name", GROUPS)
def test_permissions_of_a_group(name, groups, make_task):
    user = User.objects.create_user("ina", password="x", is_staff=True)
    user.groups.add(Group.objects.get(name=name))
    client, task = Client(), make_task(parameters={"order": "visible-text"})
    client.force_login(user)
    base = "/admin/queue_app"
    for page in ("", "task/", f"task/{task.pk}/change/", "queue/", "worker/", "deadletter/", "deadletter/causes/"):
        assert client.get(f"{base}/{page}").status_code == 200, page
    assert client.get(f"{base}/auditentry/").status_code == 200
    may = {
        "payload": "visible-text" in client.get(f"{base}/task/{task.pk}/change/").content.decode(),
        "cancel": client.post(f"{base}/task/{task.pk}/cancel/").status_code == 302,
        "pause": client.post(f"{base}/queue/default/pause/").status_code == 302,
        "edit": "_save" in client.get(f"{base}/queue/default/change/?tab=settings").content.decode(),
    }
    assert {thing for thing, allowed in may.items() if allowed} == MAY[name]


def test_existing_groups_stay_unchanged(groups):
    viewer = Group.objects.get(name="Task queue: Viewer")
    viewer.permissions.clear()
    assert _defaults.create_groups(apps, "default") == []
    assert viewer.permissions.count() == 0


def test_hidden_values_cannot_be_found_by_searching(client_of, make_task, staff):
    make_task(parameters={"password": "hunter2", "order": 17, "nested": {"country": "DE"}})
    page = "/admin/queue_app/task/?q="
    found = "send_mail"
    assert found in staff.get(f"{page}parameters.order:17").content.decode()
    assert found in staff.get(f"{page}parameters.nested.country:DE user:").content.decode()
    assert found not in staff.get(f"{page}parameters.order:18").content.decode().split("result_list")[-1]
    text = staff.get(f"{page}parameters.password:hunter2").content.decode()
    assert "Hidden values cannot be searched." in text
    text = client_of("viewer").get(f"{page}parameters.order:17").content.decode()
    assert "needs the permission queue_app.view_payload" in text
