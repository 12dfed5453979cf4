"""Signals over the API, and the steps and signals of a task."""

import pytest
from django.utils import timezone

from queue_app.core.states import Status
from queue_app.models import AuditEntry, Signal, StepResult, Task
from tests.queue_app.api.conftest import assert_problem
from tests.support.factories import let_wait


@pytest.fixture
def waiting(alice, plain_type):
    task_id = alice.submit(task_type=plain_type).data["task_id"]
    return let_wait(Task.objects.get(pk=task_id), schema={"ok": {"type": "boolean"}})


def send(client, task, **body):
    return client.post(f"/api/v1/tasks/{task.pk}/signal", body)


def test_a_signal_wakes_the_task_and_is_audited(staff, waiting):
    client = staff("view_task", "send_signal")
    response = send(client, waiting, name="approved", payload={"ok": True}, reason="checked")
    assert (response.status_code, response.data["awaited"]) == (201, True)
    waiting.refresh_from_db()
    assert waiting.status == Status.QUEUED
    assert Signal.objects.get().sent_by == client.user.username
    entry = AuditEntry.objects.get(via="api")
    assert (entry.action, entry.target_id, entry.reason) == ("task.signal", str(waiting.pk), "checked")
    assert entry.after["payload"] == "********"


def test_an_early_signal_is_kept(staff, waiting):
    response = send(staff("view_task", "send_signal"), waiting, name="later")
    assert (response.status_code, response.data["awaited"]) == (201, False)


def test_who_asks_may_not_approve(alice, bob, staff, waiting):
    assert send(alice, waiting, name="approved", payload={"ok": True}).status_code == 403
    assert send(bob, waiting, name="approved", payload={"ok": True}).status_code == 404
    assert send(staff("view_task"), waiting, name="approved", payload={"ok": True}).status_code == 403
    assert not Signal.objects.exists()


@pytest.mark.parametrize(
    ("body", "code", "field"),
    [
        ({}, "required", "name"),
        ({"payload": 1}, "required", "name"),
        ({"name": "a b"}, "invalid_name", "name"),
        ({"name": "approved", "payload": {"ok": "yes"}}, "invalid_payload", "payload"),
        ({"name": "approved", "payload": {"ok": True}, "by": "x"}, "unknown_field", "by"),
        ({"name": "other", "payload": "x" * 300_000}, "payload_too_large", "payload"),
    ],
)
def test_bad_signals(staff, waiting, body, code, field):
    response = send(staff("view_task", "send_signal"), waiting, **body)
    assert response.status_code in {400, 413}
    codes = {error["code"] for error in response.data.get("errors", ())} | {response.data["code"]}
    assert code in codes, response.data
    if field is not None and "errors" in response.data:
        assert field in {error["field"] for error in response.data["errors"]}
    assert not Signal.objects.exists()


def test_an_ended_task_takes_no_signal(alice, staff, plain_type):
    task_id = alice.submit(task_type=plain_type).data["task_id"]
    alice.delete(f"/api/v1/tasks/{task_id}")
    response = staff("view_task", "send_signal").post(f"/api/v1/tasks/{task_id}/signal", {"name": "x"})
    assert_problem(response, 409, "invalid_transition")


def test_a_task_shows_its_steps_and_signals_without_secrets(alice, staff, waiting):
    StepResult.objects.create(
        task=waiting, name="first", position=0, kind="step", attempt=1, value={"password": "canary"},
        stored_at=timezone.now(), done_at=timezone.now(),
    )  # fmt: skip
    Signal.objects.create(
        task=waiting, name="early", payload={"token": "canary"}, sent_at=timezone.now(), sent_by="ina"
    )
    found = alice.get(f"/api/v1/tasks/{waiting.pk}")
    assert b"canary" not in found.content
    assert [(step["name"], step["value"]) for step in found.data["steps"]] == [
        ("first", {"password": "********"}),
        ("wait for approved", None),
    ]
    assert found.data["steps"][1]["done_at"] is None
    assert [(one["name"], one["sent_by"]) for one in found.data["signals"]] == [("early", None)]
    hidden = staff("view_task").get(f"/api/v1/tasks/{waiting.pk}").data
    assert (hidden["steps"][0]["value"], hidden["signals"][0]["payload"]) == (None, None)
    assert hidden["signals"][0]["sent_by"] == "ina"


def test_explain_says_what_the_task_waits_for(alice, waiting):
    reasons = alice.get(f"/api/v1/tasks/{waiting.pk}/explain").data["reasons"]
    assert [reason["code"] for reason in reasons] == ["waits_for_signal"]
    assert reasons[0]["text"] == "It waits for the signal approved."
