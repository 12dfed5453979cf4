"""The panel with an object's tasks."""

import pytest
from django.contrib import admin
from django.contrib.auth.models import Group
from django.test import RequestFactory

from queue_app.admin import TaskPanelMixin


class GroupAdmin(TaskPanelMixin, admin.ModelAdmin):
    task_panel_parameters = {"group_id": "pk", "name": "name"}  # noqa: RUF012 - as its users write it
    task_panel_limit = 2


@pytest.fixture
def page(client_of, make_task):
    def show(role, group):
        client_of(role)
        from django.contrib.auth.models import User  # noqa: PLC0415

        request = RequestFactory().get("/")
        request.user = User.objects.get(username=role)
        view = GroupAdmin(Group, admin.site).change_view(request, str(group.pk))
        return view.render().content.decode()

    return show


def test_the_panel_lists_the_tasks_of_the_object_newest_first(page, make_task):
    group = Group.objects.create(name="buyers")
    tasks = [make_task(f"shop.t{n}", parameters={"group_id": group.pk, "name": "buyers"}) for n in range(3)]
    make_task("shop.other", parameters={"group_id": group.pk, "name": "others"})
    text = page("superuser", group)
    assert [str(task.pk) in text for task in tasks] == [False, True, True]
    assert "shop.other" not in text
    assert "Older tasks are not shown." in text
    assert "queue_app/admin.css" in text


def test_the_panel_needs_the_permission_to_view_tasks(page, make_task):
    group = Group.objects.create(name="buyers")
    make_task("shop.t", parameters={"group_id": group.pk, "name": "buyers"})
    from django.contrib.auth.models import Permission, User  # noqa: PLC0415

    staff = User.objects.create_user("clerk", password="x", is_staff=True)
    staff.user_permissions.add(Permission.objects.get(codename="change_group"))
    request = RequestFactory().get("/")
    request.user = staff
    text = GroupAdmin(Group, admin.site).change_view(request, str(group.pk)).render().content.decode()
    assert "shop.t" not in text


def test_without_parameters_there_are_no_tasks(make_task):
    make_task()
    plain = type("PlainAdmin", (TaskPanelMixin, admin.ModelAdmin), {})(Group, admin.site)
    assert list(plain.task_panel_tasks(Group(pk=1))) == []
