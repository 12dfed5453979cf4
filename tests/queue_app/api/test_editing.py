"""Queues, policies, and the views for staff."""

from __future__ import annotations

import pytest

from queue_app.core.priorities import Band
from queue_app.models import AuditEntry, PriorityPolicy, Queue

QUEUE = "/api/v1/queues/default"


def edit_at(client, path, body, tag=None):
    return client.call("PATCH", path, body, **({} if tag is None else {"If-Match": tag}))


def test_queues_are_listed_and_read(viewer):
    assert [queue["name"] for queue in viewer.get("/api/v1/queues").data["results"]] == ["default", "reports"]
    response = viewer.get(QUEUE)
    assert response.data["max_concurrent"] is None
    assert response.headers["ETag"] == viewer.get(QUEUE).headers["ETag"]
    assert viewer.get("/api/v1/queues/nowhere").status_code == 404


def test_an_edit_names_the_version_it_is_based_on(staff):
    client = staff("change_queue")
    tag = client.get(QUEUE).headers["ETag"]
    assert edit_at(client, QUEUE, {"max_concurrent": 3}).status_code == 428
    response = edit_at(client, QUEUE, {"max_concurrent": 3, "description": "Everything"}, tag)
    assert (response.status_code, response.data["max_concurrent"]) == (200, 3)
    assert edit_at(client, QUEUE, {"max_concurrent": 4}, tag).data["code"] == "changed_meanwhile"
    assert edit_at(client, QUEUE, {"max_concurrent": 4}, tag).status_code == 412
    assert edit_at(client, QUEUE, {"max_concurrent": None}, f'"other", {response.headers["ETag"]}').status_code == 200
    assert edit_at(client, QUEUE, {"max_concurrent": 5}, "*").status_code == 200
    assert Queue.objects.get(pk="default").max_concurrent == 5
    entry = AuditEntry.objects.order_by("-id").first()
    assert (entry.via, entry.by) == ("api", client.user.username)


def test_only_staff_with_the_permission_edit(alice, staff):
    for client in (alice, staff(), staff("view_queue")):
        assert edit_at(client, QUEUE, {"max_concurrent": 3}, "*").status_code == 403


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ({}, "body_required"),
        ({"colour": "red"}, "unknown_field"),
        ({"paused": True}, "read_only_field"),
        ({"max_concurrent": 0}, "out_of_range"),
        ({"max_concurrent": 10**12}, "out_of_range"),
        ({"expire_eagerly": None}, "boolean_expected"),
        ({"expire_eagerly": True}, "invalid"),
        ({"order": "random"}, "unknown_choice"),
    ],
)
def test_invalid_settings_of_a_queue(staff, body, code):
    response = edit_at(staff("change_queue"), QUEUE, body, "*")
    assert (response.status_code, response.data["code"]) == (400, code)


def test_policies_of_the_bands(alice, viewer, staff):
    assert [found["priority"] for found in viewer.get("/api/v1/policies").data["results"]] == [
        "critical", "high", "normal", "low", "background",
    ]  # fmt: skip
    address = "/api/v1/policies/medium"
    tag = viewer.get(address).headers["ETag"]
    client = staff("change_prioritypolicy")
    assert edit_at(alice, address, {"max_retries": 7}, tag).status_code == 403
    assert edit_at(client, address, {"max_retries": 7}, tag).data["max_retries"] == 7
    assert edit_at(client, address, {"max_retries": 8}, tag).status_code == 412
    assert edit_at(client, address, {"timeout_seconds": 0}, "*").status_code == 400
    assert PriorityPolicy.objects.get(priority=2).max_retries == 7
    assert viewer.get("/api/v1/policies/urgent").status_code == 404


def test_statistics_of_queues(transactional_db, viewer, staff, stored, index):
    stored(priority=Band.HIGH)
    index.flush()
    stats = viewer.get(f"{QUEUE}/stats").data
    assert (stats["name"], stats["depth"], stats["active"], stats["bands"]["high"]["depth"]) == ("default", 1, 0, 1)
    found = staff("view_task").get("/api/v1/admin/queue").data
    assert (found["depth"], found["active"], found["cap"], found["by_priority"]["high"]) == (1, 0, None, 1)
    assert viewer.get("/api/v1/queues/nowhere/stats").status_code == 404


def test_staff_see_the_tasks_of_all_users_and_the_whole_queue(alice, staff, stored):
    task = stored("bob")
    client = staff("view_task", "reprioritise_task")
    for address in ("/api/v1/admin/tasks", "/api/v1/admin/queue", "/api/v1/workers"):
        assert alice.get(address).status_code == 403
        assert staff().get(address).status_code == 403
    assert [found["task_id"] for found in client.get("/api/v1/admin/tasks").data["results"]] == [str(task.id)]
    address = f"/api/v1/admin/tasks/{task.id}/priority"
    assert client.put(address, {"priority": "high"}).data["priority"] == "high"
    assert alice.put(address, {"priority": "low"}).status_code == 403
    assert client.post("/api/v1/admin/tasks", {}).status_code == 405
    assert staff("view_worker").get("/api/v1/workers").data["results"] == []
