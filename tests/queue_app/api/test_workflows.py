"""Workflows over the API: submit a graph, look at it, steer it."""

import pytest
from django.db.models.functions import Now
from django.test import Client

from queue_app.api.views.docs import document
from queue_app.models import AuditEntry, Signal, Task, Workflow
from queue_app.services.control.api_keys import create_key
from tests.workers import chores

URL = "/api/v1/workflows"
ECHO = chores.echo.module_path
ORDER = {
    "name": "ship order 7",
    "tasks": [
        {"name": "pay", "task_type": ECHO, "parameters": {"value": 7}},
        {"name": "label", "task_type": ECHO, "after": ["pay"], "parameters": {"value": {"$result": "pay"}}},
        {"name": "refund", "task_type": ECHO, "after": {"pay": "failure"}, "parameters": {"value": 1}},
    ],
}


@pytest.fixture
def admin(staff):
    return staff("view_workflow", "steer_workflow", "send_signal", "add_task")


@pytest.fixture
def submitted(admin) -> dict:
    answer = admin.post(URL, ORDER)
    assert answer.status_code == 201, answer.content
    return answer.json()


def test_a_graph_is_stored_whole(submitted):
    assert set(submitted["tasks"]) == {"pay", "label", "refund"}
    found = {str(task.id): task.status for task in Task.objects.filter(workflow_id=submitted["id"])}
    assert [found[submitted["tasks"][name]] for name in ("pay", "label", "refund")] == ["queued", "blocked", "blocked"]
    assert (submitted["state"], submitted["nodes"]) == ("running", 3)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"after": ["nobody"]}, "'nobody'"),
        ({"after": ["b"]}, "These tasks wait for one another: b -> b"),
        ({"after": "pay"}, "must be a list of names"),
        ({"after": {"pay": "perhaps"}}, "must be a list of names"),
        ({"name": "pay"}, "Two tasks are named"),
        ({"parameters": {"value": {"$result": "c"}}}, "is no task that this one waits for"),
        ({"idempotency_key": "k"}, "idempotency key"),
        ({"task_type": "no.such"}, "No task is registered"),
    ],
    ids=lambda each: str(each)[:40],
)
def test_a_wrong_graph_is_refused_and_nothing_stored(admin, change, said):
    node = {"name": "b", "task_type": ECHO, "parameters": {"value": 1}} | change
    answer = admin.post(URL, {"name": "x", "tasks": [ORDER["tasks"][0], node]})
    assert answer.status_code in {400, 422}
    assert said in answer.content.decode()
    assert not Workflow.objects.exists()
    assert not Task.objects.exists()


@pytest.mark.django_db(transaction=True)  # an end is settled after the commit
def test_what_a_graph_names_undoes_it(admin):
    saga = {"name": "saga", "tasks": [ORDER["tasks"][0] | {"compensate": ECHO}, ORDER["tasks"][1]]}
    found = admin.post(URL, saga).json()
    Task.objects.filter(pk=found["tasks"]["pay"]).update(status="completed", finished_at=Now(), attempt=1)
    assert admin.post(f"{URL}/{found['id']}/cancel").json()["state"] == "compensating"
    undo = Task.objects.exclude(pk__in=found["tasks"].values()).get()
    assert (undo.task_type, undo.payload.parameters) == (ECHO, {"value": 7})
    assert admin.post(URL, {"name": "x", "tasks": [ORDER["tasks"][0] | {"compensate": "no.such"}]}).status_code == 400


def test_the_list_goes_on_where_it_stopped(admin):
    ids = [admin.post(URL, ORDER).json()["id"] for _ in range(3)]
    first = admin.get(f"{URL}?limit=2").json()
    assert [each["id"] for each in first["results"]] == [ids[2], ids[1]]
    rest = admin.get(f"{URL}?limit=2&before={first['next_before']}").json()
    assert ([each["id"] for each in rest["results"]], rest["next_before"]) == ([ids[0]], None)
    assert admin.get(f"{URL}?state=completed").json()["results"] == []
    assert len(admin.get(f"{URL}?standing=open").json()["results"]) == 3
    Workflow.objects.filter(pk=ids[0]).update(held_at="2026-01-01T00:00Z")
    assert [each["id"] for each in admin.get(f"{URL}?standing=held").json()["results"]] == [ids[0]]
    assert admin.get(f"{URL}?standing=stuck").status_code == 400


def test_the_graph_names_groups_and_edges(admin, submitted):
    found = admin.get(f"{URL}/{submitted['id']}/graph").json()
    assert (found["tasks"], found["edges"]) == (3, 2)
    by_name = {group["name"]: group for group in found["groups"]}
    assert by_name["label"]["after"] == {str(by_name["pay"]["number"]): "hold"}
    assert by_name["refund"]["after"] == {str(by_name["pay"]["number"]): "failure"}
    assert by_name["pay"]["task_id"] == submitted["tasks"]["pay"]


@pytest.mark.django_db(transaction=True)  # an end is settled after the commit
def test_pause_resume_cancel_and_retry(admin, submitted):
    at = f"{URL}/{submitted['id']}"
    paused = admin.post(f"{at}/pause", {"reason": "the bank is down"}).json()
    assert (paused["paused"], paused["paused_reason"], paused["changed"]) == (True, "the bank is down", 1)
    assert admin.post(f"{at}/resume").json()["changed"] == 1
    assert admin.post(f"{at}/cancel", {"reason": "a mistake"}).json()["state"] == "cancelled"
    again = admin.post(f"{at}/cancel").json()
    assert (again["state"], again["changed"]) == ("cancelled", 0), "said twice, it changes nothing"
    assert admin.post(f"{at}/pause").status_code == 409
    assert admin.post(f"{at}/retry").json()["changed"] == 3
    assert list(AuditEntry.objects.order_by("pk").values_list("action", flat=True)) == [
        "workflow.pause", "workflow.resume", "workflow.cancel", "workflow.retry",
    ]  # fmt: skip


def test_waiting_tasks_move_to_a_band_as_a_whole(admin, alice, submitted):
    at = f"{URL}/{submitted['id']}/priority"
    assert admin.put(at, {"priority": "critical"}).json()["changed"] == 3
    assert set(Task.objects.values_list("priority", flat=True)) == {0}
    assert alice.put(at, {"priority": "low"}).status_code == 404
    assert admin.put(at, {"priority": "soon"}).status_code in {400, 422}


def test_users_see_their_own(alice, submitted):
    from jsonschema import Draft202012Validator  # noqa: PLC0415 - its import takes seconds

    at = f"{URL}/{submitted['id']}"
    assert alice.get(URL).data["results"] == []
    for path in ("", "/graph"):
        assert alice.get(f"{at}{path}").status_code == 404
    Workflow.objects.update(user="alice", paused=True, paused_by="ada", paused_reason="secret")
    own = alice.get(at).json()
    assert (own["paused"], own["paused_by"], own["paused_reason"]) == (True, None, None)
    Draft202012Validator(document()["components"]["schemas"]["Workflow"]).validate(own)


@pytest.mark.django_db(transaction=True)  # an end is settled after the commit
def test_users_cancel_and_move_their_own_workflows(alice, bob):
    """As they may with their tasks; a pause, a retry and a signal are decisions of staff."""
    at = f"{URL}/{alice.post(URL, ORDER).json()['id']}"
    for action in ("pause", "resume", "retry", "signal"):
        assert alice.post(f"{at}/{action}", {"name": "x"} if action == "signal" else {}).status_code == 403
    assert alice.put(f"{at}/priority", {"priority": "high"}).json()["changed"] == 3
    assert bob.put(f"{at}/priority", {"priority": "low"}).status_code == 404
    assert bob.post(f"{at}/cancel").status_code == 404
    cancelled = alice.post(f"{at}/cancel", {"reason": "changed my mind"}).json()
    assert (cancelled["state"], cancelled["changed"]) == ("cancelled", 3)
    assert set(Task.objects.values_list("status", flat=True)) == {"cancelled"}
    entry = AuditEntry.objects.get(action="workflow.cancel")
    assert (entry.by, entry.via, entry.reason) == ("alice", "api", "changed my mind")


@pytest.mark.parametrize(
    ("permissions", "expected"),
    [((), 404), (("view_workflow",), 403), (("steer_workflow",), 404), (("view_workflow", "steer_workflow"), 200)],
)
def test_staff_need_both_permissions_for_the_workflows_of_others(alice, staff, permissions, expected):
    at = f"{URL}/{alice.post(URL, ORDER).json()['id']}"
    member = staff(*permissions)
    assert member.put(f"{at}/priority", {"priority": "low"}).status_code == expected
    assert member.post(f"{at}/cancel").status_code == expected


@pytest.mark.parametrize(("scopes", "expected"), [(["steer_workflow"], 200), (["cancel_task", "add_task"], 403)])
def test_a_key_of_the_owner_needs_the_scope(alice, scopes, expected):
    at = f"{URL}/{alice.post(URL, ORDER).json()['id']}"
    bearer = {"HTTP_AUTHORIZATION": f"Bearer {create_key(alice.user, 'shop', scopes=scopes)[1]}"}
    assert Client().post(f"{at}/cancel", content_type="application/json", **bearer).status_code == expected


def test_a_signal_to_a_workflow_is_kept_until_a_task_waits_for_it(admin, alice, submitted):
    at = f"{URL}/{submitted['id']}/signal"
    sent = admin.post(at, {"name": "approved", "payload": {"by": "ina"}})
    assert (sent.status_code, sent.data["awaited"]) == (201, False)
    assert Signal.objects.get().payload == {"by": "ina"}
    assert alice.post(at, {"name": "approved"}).status_code == 403


@pytest.mark.parametrize("name", ["nonsense", "019a2b00-0000-7000-8000-000000000000"])
def test_an_unknown_workflow_is_missing(admin, name):
    assert admin.get(f"{URL}/{name}").status_code == 404
    assert admin.post(f"{URL}/{name}/cancel").status_code == 404
