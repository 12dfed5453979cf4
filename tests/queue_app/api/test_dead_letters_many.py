"""Replays and discards of many dead letters over HTTP, and the operations that carry them out."""

from __future__ import annotations

import pytest

from queue_app.core.ids import uuid7
from queue_app.models import Operation, Task
from queue_app.services.operations.request import cancel_operation
from queue_app.services.operations.run import run_operations
from tests.queue_app.api.test_dead_letters import start_replay_of_all

DLQ = "/api/v1/dlq"
OPERATIONS = "/api/v1/operations"
EVERYTHING = ["view_deadletter", "replay_deadletter", "discard_deadletter"]


@pytest.fixture
def operator(staff):
    return staff(*EVERYTHING)


def test_dry_run_changes_nothing(operator, dead):
    letters = [dead(seconds_ago=9 - n) for n in range(3)]
    response = operator.post(f"{DLQ}/replay", {"filter": {"queue": "default"}, "dry_run": True, "limit": 2})
    assert (response.status_code, response.data) == (
        200,
        {"dry_run": True, "count": 2, "sample": [str(letter.id) for letter in letters[:2]]},
    )
    assert not Operation.objects.exists()


def test_replay_many_is_an_operation(operator, dead):
    letters = [dead() for _ in range(3)]
    response = operator.post(
        f"{DLQ}/replay/",
        {"ids": [str(letter.id) for letter in letters[:2]], "rate": 0.5, "stop_after_failures": 2, "reason": "fixed"},
    )
    assert response.status_code == 202
    address = f"{OPERATIONS}/{response.data['operation_id']}"
    assert response.headers["Location"] == f"http://testserver{address}"
    expected = {"state": "running", "total": 2, "replayed": 0, "rate": 0.5, "by": operator.user.username}
    assert {name: response.data[name] for name in expected} == expected
    run_operations()
    run_operations()
    data = operator.get(address).data
    assert (data["state"], data["replayed"], data["remaining"]) == ("running", 1, 1), "at its pace"
    cancelled = operator.delete(address).data
    assert (cancelled["state"], cancelled["ended_by"]) == ("cancelled", operator.user.username)
    again = operator.delete(address)
    assert (again.status_code, again.data["code"]) == (409, "operation_ended")
    letters[0].refresh_from_db()
    assert str(letters[0].operation_id) == response.data["operation_id"]


def test_an_empty_filter_selects_all(operator, dead):
    dead("alice")
    dead("bob")
    assert operator.post(f"{DLQ}/replay", {"filter": {}}).data["total"] == 2
    run_operations()
    assert set(Task.objects.values_list("status", flat=True)) == {"queued"}


@pytest.mark.parametrize(
    ("body", "field", "code"),
    [
        ({}, "ids", "required"),
        ({"ids": [], "filter": {}}, "filter", "conflicting_fields"),
        ({"ids": ["x"]}, "ids[0]", "invalid_id"),
        ({"ids": ["00000000-0000-7000-8000-000000000000"] * 1001}, "ids", "too_many"),
        ({"filter": []}, "filter", "object_expected"),
        ({"filter": {"ids": []}}, "filter.ids", "unknown_field"),
        ({"filter": {}, "rate": 0}, "rate", "out_of_range"),
        ({"filter": {}, "stop_after_failures": -1}, "stop_after_failures", "out_of_range"),
        ({"filter": {}, "reason": "x" * 201}, "reason", "invalid"),
        ({"filter": {}, "pace": 1}, "pace", "unknown_field"),
    ],
)
def test_bad_requests_for_many(operator, dead, body, field, code):
    dead()
    response = operator.post(f"{DLQ}/replay", body)
    assert (response.status_code, response.data["code"]) == (400, code)
    assert [error["field"] for error in response.data["errors"]] == [field]
    assert not Operation.objects.exists()


def test_all_errors_at_once(operator):
    body = {"filter": {"user": 1, "text": ""}, "rate": 0, "dry_run": 1, "reason": 5}
    errors = operator.post(f"{DLQ}/replay", body).data["errors"]
    assert {error["field"] for error in errors} == {"filter.user", "filter.text", "rate", "dry_run", "reason"}


@pytest.mark.parametrize("field", ["rate", "stop_after_failures"])
def test_a_discard_has_no_rate(operator, field):
    assert operator.post(f"{DLQ}/discard", {"filter": {}, field: 1}).data["code"] == "unknown_field"


def test_operations_are_for_staff(alice, staff, dead):
    operation = start_replay_of_all()
    for client in (alice, staff(), staff("view_deadletter")):
        for call in (client.get, client.delete):
            answers = [call(f"{OPERATIONS}/{name}") for name in (operation.id, uuid7(), "x")]
            assert {answer.data["code"] for answer in answers} == {"operation_not_found"}
    viewer = staff("view_operation")
    assert viewer.get(f"{OPERATIONS}/{operation.id}").status_code == 200
    assert viewer.delete(f"{OPERATIONS}/{operation.id}").status_code == 403
    cancel_operation(operation.id, by="")
