"""System D, the work queue on RQ: query, inspect, count and delete tasks; retries at growing intervals; TTLs."""

import pytest
from django.contrib.auth.models import User

from queue_app.models import AuditEntry, Task
from queue_app.services.control.api_keys import create_key, forget_keys
from tests.queue_app.api.conftest import ApiClient

TASKS = "/api/v1/tasks"


def test_the_states_of_d_are_accepted_in_filters(alice, stored):
    running, succeeded = stored(status="executing"), stored(status="completed")
    for name, task in (("running", running), ("succeeded", succeeded)):
        assert [found["task_id"] for found in alice.get(f"{TASKS}?status={name}").data["results"]] == [str(task.id)]
        assert alice.get(f"{TASKS}/count?status={name}").data["count"] == 1


def test_delete_one_that_has_ended(alice, bob, stored):
    task = stored(status="completed")
    path = f"{TASKS}/{task.id}?delete=true"
    assert bob.delete(path).status_code == 404
    assert alice.delete(path).data == {
        "id": str(task.id), "task_id": str(task.id), "status": "completed", "cancel_requested": False, "deleted": True,
    }  # fmt: skip
    assert alice.get(f"{TASKS}/{task.id}").status_code == 404
    entry = AuditEntry.objects.get()
    assert (entry.by, entry.target_id, entry.after["request"]) == ("alice", str(task.id), {"delete": True})


@pytest.mark.parametrize("status", [None, "executing", "scheduled"])
def test_never_one_that_has_not(alice, stored, status):
    task = stored(status=status)
    refused = alice.delete(f"{TASKS}/{task.id}?delete=true")
    assert (refused.status_code, refused.data["task_status"]) == (409, task.status)
    assert Task.objects.filter(pk=task.pk, status=task.status).exists()


@pytest.fixture
def with_scopes(queues):
    """Return a client with a key of a superuser that has these scopes."""
    forget_keys()

    def make(*scopes: str) -> ApiClient:
        _key, secret = create_key(User.objects.create_superuser("root"), "laptop", scopes=scopes)
        return ApiClient(None, headers={"Authorization": f"Bearer {secret}"})

    yield make
    forget_keys()


def test_others_tasks_need_the_permission_and_the_scope(staff, stored, with_scopes):
    task = stored("alice", status="completed")
    path = f"{TASKS}/{task.id}?delete=true"
    assert staff("view_task", "cancel_task").delete(path).status_code == 403
    assert with_scopes("view_task", "cancel_task").delete(path).status_code == 403
    assert staff("view_task", "delete_task").delete(path).status_code == 200


def test_delete_many_by_filter_as_an_operation(alice, stored):
    kept = stored()
    for _ in range(3):
        stored(status="completed")
    stored("bob", status="completed")
    body = {"action": "delete", "filter": {"status": ["completed"]}}
    assert alice.post(f"{TASKS}/bulk-actions", body | {"dry_run": True}).data["count"] == 3
    operation = alice.post(f"{TASKS}/bulk-actions", body | {"reason": "done with them"}).data
    assert (operation["state"], operation["changed"], operation["remaining"]) == ("done", 3, 0)
    assert set(Task.objects.values_list("user", "status")) == {("alice", kept.status), ("bob", "completed")}
    assert AuditEntry.objects.filter(by="alice", reason="done with them").count() == 1
