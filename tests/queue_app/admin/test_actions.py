"""Permissions of the actions, and their effect on rows, index, history and messages."""

import re
import uuid
from collections import Counter
from datetime import timedelta
from importlib import import_module

import pytest
from django.apps import apps
from django.contrib.admin.models import LogEntry
from django.contrib.auth.models import Group, User
from django.test import Client
from django.utils import timezone

from queue_app.core.priorities import Band
from queue_app.core.records import TaskRef
from queue_app.core.states import Status
from queue_app.index import get_index
from queue_app.models import AuditEntry, Operation, Queue, Task
from tests.support.factories import QueueFactory, StaffFactory
from tests.support.pages import CONFIRMED, messages_of, select, text_of, url, words_of

TASKS = "/admin/queue_app/task/"
QUEUES = "/admin/queue_app/queue/"
ALL_ROLES = ["superuser", "nothing", "viewer", "canceller", "reprioritiser", "pauser", "cancel_only", "anonymous"]


def position(task):
    task.refresh_from_db()
    ref = TaskRef(task.id, task.task_type, task.queue, task.priority, tuple(task.capabilities), task.queued_at)
    return get_index().position(ref)


# -- permissions --------------------------------------------------------------------------


@pytest.mark.parametrize("role", ALL_ROLES)
def test_who_sees_which_page(role, client_of, make_task, make_worker):
    client, task, worker = client_of(role), make_task(), make_worker()
    pages = {
        "task": [TASKS, f"{TASKS}{task.pk}/change/", f"{TASKS}{task.pk}/history/"],
        "queue": [QUEUES, f"{QUEUES}default/change/"],
        "worker": ["/admin/queue_app/worker/", f"/admin/queue_app/worker/{worker.pk}/change/"],
        "policy": ["/admin/queue_app/prioritypolicy/", "/admin/queue_app/runtimesettings/1/change/"],
    }
    allowed = {
        "superuser": {"task", "queue", "worker", "policy"},
        "viewer": {"task", "queue", "worker"},
        "canceller": {"task"},
        "reprioritiser": {"task"},
        "pauser": {"queue"},
    }.get(role, set())
    for kind, addresses in pages.items():
        for address in addresses:
            expected = 200 if kind in allowed else 302 if role == "anonymous" else 403
            assert client.get(address).status_code == expected, address


#: What is done -> (list, action on many, button, posted data, who may, how a row shows that it was done).
DOORS = {
    "cancel": (TASKS, "cancel_selected", "cancel", {}, "canceller", lambda task: task.status == Status.CANCELLED),
    "reprioritise": (
        TASKS, "reprioritise_selected", "priority", {"priority": "critical"}, "reprioritiser",
        lambda task: task.priority == Band.CRITICAL,
    ),
    "pause": (QUEUES, "pause_selected", "pause", {"reason": "why not"}, "pauser", lambda queue: queue.paused),
}  # fmt: skip


@pytest.mark.parametrize("role", ALL_ROLES)
@pytest.mark.parametrize("door", DOORS)
def test_who_may_act_by_button_and_on_many(role, door, client_of, make_task):
    path, action, button, data, own_role, is_done = DOORS[door]
    client, may = client_of(role), role in {"superuser", own_role}
    one, many = (make_task() if path == TASKS else QueueFactory(name=name) for name in ("one", "many"))
    status = client.post(f"{path}{one.pk}/{button}/", data).status_code
    assert status == (302 if may or role == "anonymous" else 403)
    select(client, path, action, [many], **data)
    for row in (one, many):
        row.refresh_from_db()
        assert is_done(row) == may


@pytest.mark.parametrize("role", ["canceller", "viewer", "reprioritiser", "superuser"])
def test_buttons_and_actions_need_their_permission(role, client_of, make_task):
    client, task = client_of(role), make_task()
    page = client.get(f"{TASKS}{task.pk}/change/").content.decode()
    menu = client.get(TASKS).content.decode()
    assert ("Cancel task" in page) == ("cancel_selected" in menu) == (role in {"canceller", "superuser"})
    assert ("Change priority" in page) == ("reprioritise_selected" in menu) == (role in {"reprioritiser", "superuser"})


@pytest.mark.parametrize(
    "path", ["task/{task}/cancel/", "task/{task}/priority/", "queue/default/pause/", "queue/default/resume/"]
)
def test_changes_need_a_post_with_a_csrf_token(path, client_of, make_task):
    task = make_task()
    client = client_of("superuser", enforce_csrf_checks=True)
    address = f"/admin/queue_app/{path.format(task=task.pk)}"
    assert client.get(address).status_code == 405
    assert client.post(address, {"priority": "low"}).status_code == 403
    task.refresh_from_db()
    assert (task.status, task.priority) == (Status.QUEUED, Band.NORMAL)
    assert not Queue.objects.get(pk="default").paused
    assert select(client, TASKS, "cancel_selected", [task]).status_code == 403


def test_staff_cannot_edit_rows(staff, make_task, make_worker):
    task, worker = make_task(), make_worker()
    assert staff.post(f"{TASKS}{task.pk}/change/", {"status": "completed"}).status_code == 403
    assert staff.get(f"{TASKS}add/").status_code == 403
    assert staff.post(f"{TASKS}{task.pk}/delete/", {"post": "yes"}).status_code == 403
    assert staff.post(f"/admin/queue_app/worker/{worker.pk}/change/", {"status": "dead"}).status_code == 403
    select(staff, TASKS, "delete_selected", [task], post="yes")
    task.refresh_from_db()
    assert task.status == Status.QUEUED
    for model in ("deadletter", "queuestats", "indexgeneration", "runtimesettings", "prioritypolicy"):
        assert staff.get(f"/admin/queue_app/{model}/add/").status_code == 403


# -- effects ---------------------------------------------------------------------


def test_cancel_selected(staff, committed, make_task, run_task, end_task):
    waiting, running, ended = make_task(), run_task(make_task()), end_task(make_task())
    behind = make_task()
    before = position(behind)
    with committed():
        response = select(staff, TASKS, "cancel_selected", [waiting, running, ended])
    for task in (waiting, running, ended):
        task.refresh_from_db()
    assert [waiting.status, running.status, ended.status] == [Status.CANCELLED, Status.EXECUTING, Status.COMPLETED]
    assert running.cancel_requested_at is not None
    assert position(behind) == before - 1
    link = f'<a href="{url(Operation, "change", Operation.objects.get().pk)}">What became of each</a>'
    assert messages_of(response) == [
        f"Cancelled 1 task. {link}",
        f"Asked the workers to stop 1 task. {link}",
        "Skipped 1 task (ended already): 1 completed.",
    ]
    log = dict(LogEntry.objects.values_list("object_id", "change_message"))
    assert log == {str(waiting.pk): "Cancelled: because", str(running.pk): "Asked to stop while executing: because"}


def test_reprioritise_selected(staff, committed, make_task, run_task, end_task):
    first, second, running = make_task(), make_task(), run_task(make_task())
    assert position(second) == 2
    with committed():
        response = select(staff, TASKS, "reprioritise_selected", [second, running], priority="high")
    second.refresh_from_db()
    running.refresh_from_db()
    assert (second.priority, running.priority) == (Band.HIGH, Band.NORMAL)
    assert (position(second), position(first)) == (1, 2)
    changed, skipped = messages_of(response)
    assert changed.startswith("Changed the priority of 1 task to high.")
    assert skipped == "Skipped 1 task (not waiting any more, or in that band already): 1 executing."
    entry = LogEntry.objects.get()
    assert (entry.object_id, entry.change_message) == (str(second.pk), "Priority changed from normal to high: because")
    assert entry.user.get_username() == "superuser"


def test_the_page_asks_for_the_priority(staff, make_task):
    task = make_task()
    ask = {"action": "reprioritise_selected", "index": "0", "_selected_action": [str(task.pk)]}
    assert 'name="priority" value="critical"' in staff.post(TASKS, ask).content.decode()
    for wrong in ({}, {"priority": "urgent"}):
        assert "Choose a priority." in text_of(staff.post(TASKS, ask | CONFIRMED | wrong))
    task.refresh_from_db()
    assert task.band is Band.NORMAL


def test_actions_on_all_that_match(staff, make_task):
    for _ in range(3):
        make_task("a.task")
    other = make_task("b.task")
    ask = {"action": "cancel_selected", "index": "0", "select_across": "1", "_selected_action": [str(other.pk)]}
    page = staff.post(f"{TASKS}?task_type=a.task", ask).content.decode()
    assert "3 tasks will be cancelled." in page
    assert "all tasks that match the list" in page
    assert Task.objects.in_status("queued").count() == 4, "the first request only asks for confirmation"
    staff.post(f"{TASKS}?task_type=a.task", ask | {"confirmed": "yes", "reason": "sold out"})
    assert Counter(Task.objects.values_list("task_type", "status")) == {
        ("a.task", "cancelled"): 3,
        ("b.task", "queued"): 1,
    }

    operation = Operation.objects.get()
    assert (operation.changed, operation.reason, operation.by) == (3, "sold out", "superuser")
    assert AuditEntry.objects.filter(action="task.cancel_all", reason="sold out", count=3).exists()


@pytest.mark.parametrize("query", ["?user=ina", "?q=user%3Aina"])
def test_an_action_without_ticks_means_all_that_match(staff, make_task, query):
    theirs = {make_task(user="ina").pk for _ in range(3)}
    other = make_task(user="omar")
    assert "none ticked: all 3 that match" in words_of(staff.get(TASKS + query))
    asked = staff.post(TASKS + query, {"action": "reprioritise_selected", "index": "0"})
    assert "3 tasks will get another priority." in words_of(asked)
    assert "all tasks that match the list's filters now" in words_of(asked)
    assert not Task.objects.exclude(priority=Band.NORMAL).exists(), "the first page changes nothing"
    repeated = re.findall(r'type="hidden" name="(\w+)" value="([^"]*)"', text_of(asked))
    staff.post(TASKS + query, dict(repeated) | CONFIRMED | {"priority": "critical"})
    assert set(Task.objects.filter(priority=Band.CRITICAL).values_list("pk", flat=True)) == theirs
    assert Task.objects.get(pk=other.pk).band is Band.NORMAL


@pytest.mark.parametrize("query", ["", "?sort=oldest", "?q=", "?p=1"])
def test_an_action_without_ticks_needs_a_narrowed_list(staff, make_task, query):
    make_task()
    assert "none ticked" not in words_of(staff.get(TASKS + query))
    page = words_of(staff.post(TASKS + query, {"action": "cancel_selected", "index": "0"}, follow=True))
    assert "Items must be selected" in page
    assert not Task.objects.filter(status="cancelled").exists()


def test_the_first_of_those_that_match_and_what_became_of_each(staff, make_task, client):
    oldest, middle, newest = (make_task("a.task") for _ in range(3))
    chosen = {"limit": "2", "order": "newest", "rate": "500"}
    response = select(staff, f"{TASKS}?task_type=a.task", "cancel_selected", [oldest], select_across="1", **chosen)
    operation = Operation.objects.get()
    assert (operation.total, operation.limit, operation.rate, operation.arguments) == (2, 2, 500, {"order": "newest"})
    assert [task.status for task in Task.objects.order_by("id")] == ["queued", "cancelled", "cancelled"]
    page = url(Operation, "change", operation.pk)
    assert f'<a href="{page}">What became of each</a>' in messages_of(response)[0]
    Task.objects.filter(pk=middle.pk).delete()
    told = text_of(staff.get(page))
    assert "only 2, newest first, 500 per second" in told
    assert "1 cancelled" in told
    assert "1 deleted" in told
    assert url(Task, "change", newest.pk) in told
    assert url(Task, "change", oldest.pk) not in told
    client.force_login(StaffFactory(permissions=["view_operation"]))
    assert str(newest.pk) not in text_of(client.get(page)), "of tasks, one learns only who may see them"


@pytest.mark.parametrize(("action", "kind"), [("retry_selected", "retry"), ("run_now_selected", "run_now")])
def test_an_operation_queues_all_that_match(action, kind, staff, make_task, end_task, override):
    override("queue_app.admin.bulk", STEP=2)
    later = timezone.now() + timedelta(hours=1)
    ready = [
        make_task(run_after=later) if kind == "run_now" else end_task(make_task(), Status.FAILED) for _ in range(3)
    ]
    done = end_task(make_task(), Status.COMPLETED)
    response = select(staff, TASKS, action, [*ready[:1], done], select_across="1")
    assert messages_of(response)[0].startswith("3 of 3 tasks done")
    assert {task.status for task in Task.objects.filter(pk__in=[task.pk for task in ready])} == {"queued"}
    assert Task.objects.get(pk=done.pk).status == "completed"
    assert (Operation.objects.get().kind, Operation.objects.get().changed) == (kind, 3)
    assert AuditEntry.objects.get(count=3).action == f"task.{kind}_all"


def test_a_large_selection_becomes_a_background_operation(staff, make_task, override):
    override("queue_app.admin.bulk", STEP=2)
    tasks = [make_task() for _ in range(3)]
    response = select(staff, TASKS, "cancel_selected", tasks, reason="sold out")
    assert messages_of(response)[0].startswith("3 of 3 tasks done, 0 skipped.")
    assert {task.status for task in Task.objects.all()} == {"cancelled"}
    entry = AuditEntry.objects.get(action="task.cancel_all")
    assert (entry.count, entry.reason, entry.by) == (3, "sold out", "superuser")


def test_a_selection_is_an_operation_that_ends_at_once(staff, make_task):
    tasks = [make_task(), make_task()]
    select(staff, TASKS, "reprioritise_selected", tasks, reason="sale", priority="high")
    operation = Operation.objects.get()
    assert (operation.state, operation.changed, operation.by, operation.reason) == ("done", 2, "superuser", "sale")
    entry = AuditEntry.objects.get()
    assert (entry.action, entry.count, entry.reason) == ("task.reprioritise", 2, "sale")
    assert (entry.before, entry.after["priority"]) == ({"priority": "normal"}, "high")


def test_a_purged_task_is_named_in_the_message(staff, make_task, monkeypatch):
    task = make_task()
    real = Task.objects.filter(pk=task.pk)

    def vanish(ids):
        real.delete()
        return {}

    monkeypatch.setattr("queue_app.services.operations.run.cancel_many", vanish)
    assert messages_of(select(staff, TASKS, "cancel_selected", [task])) == [
        "Skipped 1 task (ended already): 1 deleted."
    ]


def test_invalid_ids_get_a_message(staff):
    data = {"action": "cancel_selected", "index": "0", "_selected_action": ["nonsense"]}
    response = staff.post(TASKS, data)
    assert response.status_code == 302
    assert "invalid value" in messages_of(response)[0]


def test_buttons_of_a_task(staff, committed, make_task):
    ahead, task = make_task(), make_task()
    with committed():
        response = staff.post(f"{TASKS}{task.pk}/priority/", {"priority": "medium"}, follow=True)
    assert "The priority is now normal." in response.content.decode()
    with committed():
        staff.post(f"{TASKS}{task.pk}/priority/", {"priority": "critical"})
    assert position(task) == 1
    with committed():
        response = staff.post(f"{TASKS}{task.pk}/cancel/", follow=True)
    assert "The task is cancelled." in response.content.decode()
    assert position(task) is None
    response = staff.post(f"{TASKS}{task.pk}/cancel/", follow=True)
    assert "can no longer be cancelled" in response.content.decode()
    response = staff.post(f"{TASKS}{task.pk}/priority/", {"priority": "low"}, follow=True)
    assert "only waiting tasks" in response.content.decode()
    response = staff.post(f"{TASKS}{ahead.pk}/priority/", {"priority": "<b>urgent</b>"}, follow=True)
    assert "&#x27;&lt;b&gt;urgent" in response.content.decode()
    messages = LogEntry.objects.filter(object_id=str(task.pk)).values_list("change_message", flat=True).order_by("id")
    assert list(messages) == [
        "Priority changed from normal to normal.",
        "Priority changed from normal to critical.",
        "Cancelled.",
    ]


def test_cancel_asks_the_worker_of_a_running_task_to_stop(staff, make_task, run_task):
    task = run_task(make_task())
    response = staff.post(f"{TASKS}{task.pk}/cancel/", follow=True)
    page = response.content.decode()
    assert "its worker was asked to stop it" in page
    assert "cancel requested" in page
    assert "Ask to stop" not in page


def test_buttons_of_an_unknown_task(staff):
    response = staff.post(f"{TASKS}{uuid.uuid4()}/cancel/")
    assert response.status_code == 302
    assert "There is no task" in messages_of(response)[0]


def test_actions_work_while_redis_is_down(staff, committed, make_task, redis_down):
    task = make_task()
    with committed():
        select(staff, TASKS, "reprioritise_selected", [task], priority="high")
    with committed():
        staff.post(f"{TASKS}{task.pk}/cancel/")
    task.refresh_from_db()
    assert (task.priority, task.status) == (Band.HIGH, Status.CANCELLED)


# -- roles -----------------------------------------------------------------------------------------------------------


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
