"""Unique tasks over the API, in the admin and in explanations."""

import pytest
from django.urls import reverse

from queue_app import Unique, registry, task
from queue_app.diagnose.explain import explain
from queue_app.models import Task, TaskPayload
from tests.support.factories import StaffFactory


@task(unique=Unique(by=["order"]))
def ship(order: int) -> None: ...


@task(unique=Unique(by=["order"], on_conflict="raise"))
def bill(order: int) -> None: ...


SHIP, BILL = registry.type_of(ship), registry.type_of(bill)


def test_a_repetition_is_answered_with_the_task_that_stands(engine, alice):
    first = alice.submit(task_type=SHIP, parameters={"order": 1})
    again = alice.submit(task_type=SHIP, parameters={"order": 1})
    assert (first.status_code, again.status_code) == (201, 200)
    assert (again.data["task_id"], again.data["replayed"]) == (first.data["task_id"], True)
    assert first.data["queue_position"] == again.data["queue_position"] == 1
    found = alice.get(f"/api/v1/tasks/{first.data['task_id']}").data
    assert found["unique_key"] == Task.objects.get().unique_key


def test_a_refusal_names_the_task_that_stands(alice):
    first = alice.submit(task_type=BILL, parameters={"order": 1})
    refused = alice.submit(task_type=BILL, parameters={"order": 1})
    assert (refused.status_code, refused.data["code"]) == (409, "unique_conflict")
    assert (refused.data["task_id"], refused.data["task_status"]) == (first.data["task_id"], "queued")


@pytest.mark.parametrize("kind", [SHIP, BILL])
def test_the_task_of_another_user_stays_hidden(alice, bob, kind):
    first = alice.submit(task_type=kind, parameters={"order": 1})
    refused = bob.submit(task_type=kind, parameters={"order": 1})
    assert (refused.status_code, refused.data["code"]) == (409, "unique_conflict")
    assert first.data["task_id"] not in str(refused.data)


def test_many_submissions_of_one_request(alice):
    body = {"tasks": [{"task_type": SHIP, "parameters": {"order": order}} for order in (1, 1, 2)]}
    found = alice.post("/api/v1/tasks/bulk", body).data["tasks"]
    assert [item["replayed"] for item in found] == [False, True, False]
    assert found[0]["task_id"] == found[1]["task_id"] != found[2]["task_id"]


def test_the_metadata_of_hooks_are_shown_without_secrets(alice, client):
    task_id = alice.submit(task_type=SHIP, parameters={"order": 1}).data["task_id"]
    TaskPayload.objects.update(metadata={"tenant": "acme", "token": "canary"})
    assert alice.get(f"/api/v1/tasks/{task_id}").data["metadata"] == {"tenant": "acme", "token": "********"}
    client.force_login(StaffFactory(is_superuser=True))
    page = client.get(reverse("admin:queue_app_task_change", args=[task_id])).content.decode()
    assert "acme" in page
    assert "canary" not in page


def test_explain_and_the_admin_show_the_rule(alice, client):
    task_id = alice.submit(task_type=SHIP, parameters={"order": 1}).data["task_id"]
    words = "one for the same order until it has ended"
    reason = next(reason for reason in explain(task_id).reasons if reason.code == "unique")
    assert (reason.blocks, words in reason.text) == (False, True)
    client.force_login(StaffFactory(is_superuser=True))
    page = client.get(reverse("admin:queue_app_task_change", args=[task_id])).content.decode()
    assert words in page
    assert Task.objects.get().unique_key in page
