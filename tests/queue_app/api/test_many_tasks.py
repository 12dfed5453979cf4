"""Many tasks: submit, filter, count, export, act on them, and watch operations."""

from __future__ import annotations

import csv
import json
import uuid
from datetime import UTC, datetime, timedelta

import pytest

from queue_app import registry, task
from queue_app.core.priorities import Band
from queue_app.models import Operation, Task
from queue_app.services.operations.run import run_operations
from queue_app.services.read import inspect
from tests.support.factories import AttemptFactory

TASKS = "/api/v1/tasks"
BULK, ACTIONS, COUNT, EXPORT = (f"{TASKS}/{name}" for name in ("bulk", "bulk-actions", "count", "export"))


def ids(response) -> set[str]:
    return {task["task_id"] for task in response.data["results"]}


def lines(response) -> list[str]:
    return b"".join(response.streaming_content).decode().splitlines()


class TestBulkSubmit:
    def test_all_or_nothing_in_order(self, alice, plain_type, render_type):
        body = {
            "tasks": [{"task_type": plain_type, "parameters": {"n": 1}}, {"task_type": render_type, "priority": "low"}]
        }
        response = alice.post(BULK, body)
        assert (response.status_code, response.data["count"]) == (201, 2)
        found = [Task.objects.get(pk=task["task_id"]) for task in response.data["tasks"]]
        assert [(task.task_type, task.user) for task in found] == [(plain_type, "alice"), (render_type, "alice")]
        assert found[1].band is Band.LOW

    def test_bad_items_are_named_and_nothing_is_stored(self, alice, plain_type, row_counts):
        before = row_counts()
        good = {"task_type": plain_type}
        for tasks, fields in (
            ([{**good, "priority": "urgent"}, {"x": 1}], {"tasks[0].priority", "tasks[1].x", "tasks[1].task_type"}),
            ([good, 5], {"tasks[1]"}),
            ([good, {"task_type": "no.such"}], {"tasks[1].task_type"}),
            ([good, {"task_type": plain_type, "queue": "nowhere"}], {"tasks[1].queue"}),
            ([good, {"task_type": plain_type, "timeout_seconds": -1}], {"tasks[1].timeout_seconds"}),
            ([{**good, "idempotency_key": "k"}] * 2, {"tasks[1].idempotency_key"}),
            ([], {"tasks"}),
            ({}, {"tasks"}),
        ):  # fmt: skip
            response = alice.post(BULK, {"tasks": tasks})
            assert response.status_code == 400, tasks
            assert {error["field"] for error in response.data["errors"]} == fields
        response = alice.post(BULK, {"tasks": [good] * 1001})
        assert (response.status_code, response.data["code"]) == (400, "batch_too_large")
        assert row_counts() == before

    def test_a_key_in_the_header_makes_the_request_repeatable(self, alice, bob, plain_type):
        body = {"tasks": [{"task_type": plain_type, "parameters": {"n": n}} for n in range(3)]}
        key = {"Idempotency-Key": "order 7"}
        first, again = alice.post(BULK, body, **key), alice.post(BULK, body, **key)
        assert (first.status_code, again.status_code) == (201, 200)
        assert [r.headers.get("Idempotency-Replayed") for r in (first, again)] == [None, "true"]
        assert [t["task_id"] for t in again.data["tasks"]] == [t["task_id"] for t in first.data["tasks"]]
        assert all(task["replayed"] for task in again.data["tasks"])
        body["tasks"][2]["parameters"] = {"n": 9}
        assert alice.post(BULK, body, **key).status_code == 409
        body["tasks"][2]["parameters"] = {"n": 2}
        for tasks in (body["tasks"][:2], [*body["tasks"], {"task_type": plain_type}]):
            refused = alice.post(BULK, {"tasks": tasks}, **key)
            assert (refused.status_code, refused.data["code"]) == (409, "idempotency_conflict"), "the whole request"
        assert bob.post(BULK, body, **key).status_code == 201

    @pytest.mark.parametrize("key", ["", " ", "k" * 65, "a\tb"])
    def test_a_key_in_the_header_follows_the_rules_of_a_single_task(self, alice, plain_type, key):
        body = {"task_type": plain_type}
        for path, content in (("/api/v1/tasks", body), (BULK, {"tasks": [body]})):
            refused = alice.post(path, content, **{"Idempotency-Key": key})
            assert (refused.status_code, refused.data["errors"][0]["field"]) == (400, "idempotency_key"), path
        assert not Task.objects.exists()


class TestFilters:
    @pytest.mark.parametrize("window", [0, 1, inspect.WINDOW])
    def test_every_filter(self, window, alice, staff, stored, plain_type, override):
        override(inspect, WINDOW=window)
        plain = stored(parameters={"order_id": 42, "vip": True, "customer": {"id": "7"}})
        other = stored("bob", parameters={"order_id": "42"}, queue="reports", priority=Band.LOW, capabilities=("gpu",))
        Task.objects.filter(pk=other.pk).update(queued_at=datetime.now(UTC) - timedelta(seconds=700))
        dead = stored(status="dead_letter", parameters={"order_id": 43})
        AttemptFactory(task=dead, exception_class="shop.OutOfStock", message="No cups left")
        moment = dead.created_at.isoformat().replace("+", "%2B")
        client = staff("view_task", "view_payload")
        for query, wanted in (
            ("parameters__order_id=42", {plain, other}),
            ("parameters__order_id=42&parameters__vip=true", {plain}),
            ("parameters__customer__id=7", {plain}),
            ("parameters__order_id=4", set()),
            ("capability=gpu", {other}),
            ("effective_priority=normal&priority=low", {other}),
            ("effective_priority=low", set()),
            ("queue=reports,nowhere", {other}),
            ("queue=reports&queue=default", {plain, other, dead}),
            ("error=out%20of", set()),
            ("error=outofstock", {dead}),
            ("error=cups+LEFT", {dead}),
            (f"task_type={plain_type}", {plain, other, dead}),
            (f"task_type={plain_type},nothing&status=dead_letter", {dead}),
            (f"task_type={plain_type}&status=queued&effective_priority=normal", {plain, other}),
            ("parameters__order_id=42&status=dead_letter,failed", set()),
            ("parameters__order_id=43&status=dead_letter,failed", {dead}),
            (f"created_before={moment}&task_type={plain_type}", {plain, other}),
            ("created_before=1980-01-02T00:00:00Z", set()),
            ("finished_before=2200-12-31T23:59:59Z", {dead}),
            ("task_type=nothing", set()),
            ("priority=normal&effective_priority=high,normal", {plain, dead}),
            ("priority=low&effective_priority=high&status=pending", set()),
            ("status=pending", {plain, other}),
            ("status=completed", set()),
            (f"created_after={moment}", {dead}),
            (f"queued_after={moment}&status=pending,completed", set()),
            (f"created_before={moment}", {plain, other}),
            (f"finished_after={moment}&status=dead_letter", {dead}),
        ):
            page = client.get(f"{TASKS}?{query}&page_size=1")
            listed = list(page.data["results"])
            while page.data["next_cursor"]:
                page = client.get(f"{TASKS}?{query}&page_size=1&cursor={page.data['next_cursor']}")
                listed += page.data["results"]
            assert [task["task_id"] for task in listed] == sorted((str(task.id) for task in wanted), reverse=True), (
                query
            )
            assert client.get(f"{TASKS}?{query}").data["results"] == listed
            assert client.get(f"{COUNT}?{query}").data == {"count": len(wanted), "capped": False}
        assert alice.get(f"{COUNT}?parameters__order_id=42").data["count"] == 1

    @pytest.mark.parametrize(
        ("query", "code"),
        [
            ("parameters__=1", "unknown_parameter"),
            ("parameters__a____b=1", "unknown_parameter"),
            ("parameters__a=%00", "invalid_characters"),
            ("parameters__a%00=1", "invalid_characters"),
            ("parameters__a=1&parameters__a=2", "repeated_parameter"),
            ("&".join(f"parameters__{name}=1" for name in "abcdef"), "too_many"),
            ("finished_before=yesterday", "datetime_expected"),
            (f"error={'x' * 201}", "invalid"),
            ("fields=payload", "unknown_field"),
        ],
    )
    def test_invalid_requests(self, alice, query, code):
        response = alice.get(f"{TASKS}?{query}")
        assert response.status_code == 400
        assert response.data["code"] == code

    @pytest.mark.parametrize(
        ("query", "refused"),
        [
            ("parameters__password=a", True),
            ("parameters__login__api_key=1", True),
            ("parameters__pin=1", True),  # declared by the project
            ("parameters__card__number=4", True),  # declared by one task, so hidden for all types
            ("parameters__card__number=4&task_type={declaring}", True),
            ("parameters__card__number=4&task_type={plain},{declaring}", True),
            ("parameters__card__number=4&task_type=shop.gone", True),  # an unknown type may have declared any name
            ("parameters__card__number=4&task_type={plain}", False),
            ("parameters__url=https://me:guess@example.org/", True),
            ("parameters__url=https://example.org/", False),
        ],
    )
    def test_secrets_are_not_found_by_trying(self, query, refused, alice, plain_type, settings, known_tasks):
        settings.TASKQUEUE = settings.TASKQUEUE | {"SENSITIVE": ["PIN"]}

        def charge(card):
            """Do nothing."""

        charge.__qualname__ = "charge"
        declaring = registry.type_of(task(sensitive=["card"])(charge))
        query = query.format(plain=plain_type, declaring=declaring)
        for path in (TASKS, COUNT, EXPORT):
            response = alice.http.get(f"{path}?{query}")
            assert response.status_code == (400 if refused else 200)
            if refused:
                assert response.json()["code"] == "sensitive_parameter"
                assert "guess" not in response.content.decode()

    def test_secrets_are_not_found_by_trying_in_actions_on_many(self, alice):
        for hidden in ({"password": "a"}, {"rows": [{"token": 7}]}, {"order_id": 1, "login": {"secret": ["a"]}}):
            body = {"action": "cancel", "dry_run": True, "filter": {"parameters": hidden}}
            response = alice.post("/api/v1/tasks/bulk-actions", body)
            assert response.status_code == 400
            assert response.data["code"] == "sensitive_parameter"

    def test_the_newest_tasks_first(self, alice, stored):
        tasks = [stored() for _ in range(3)]
        body = {"action": "cancel", "filter": {}, "limit": 2, "order": "newest"}
        assert alice.post(ACTIONS, body | {"dry_run": True}).data["sample"] == [str(task.id) for task in tasks[:0:-1]]
        assert alice.post(ACTIONS, body).data["changed"] == 2
        assert [Task.objects.get(pk=task.id).status for task in tasks] == ["queued", "cancelled", "cancelled"]
        assert alice.post(ACTIONS, body | {"order": "best"}).data["code"] == "unknown_choice"

    def test_an_offset_that_the_database_cannot_read(self, alice):
        assert alice.get(f"{TASKS}?created_after=2030-01-01T00:00:00-20:10").status_code == 200

    def test_only_the_requested_fields(self, alice, stored):
        task = stored()
        assert alice.get(f"{TASKS}?fields=status,task_id").data["results"] == [
            {"status": "queued", "task_id": str(task.id)}
        ]

    def test_a_count_stops_at_its_cap_unless_exact(self, alice, stored, override):
        override(inspect, COUNT_CAP=2)
        for _ in range(3):
            stored()
        assert alice.get(COUNT).data == {"count": 2, "capped": True}
        assert alice.get(f"{COUNT}?exact=true").data == {"count": 3, "capped": False}
        assert alice.get(f"{COUNT}?exact=yes").data["code"] == "boolean_expected"


class TestExport:
    def test_ndjson_of_own_tasks_over_several_pages(self, alice, stored, override):
        override(inspect, EXPORT_PAGE=2)
        tasks = [stored() for _ in range(4)]
        stored("bob")
        response = alice.http.get(EXPORT)
        assert response.headers["Content-Type"] == "application/x-ndjson"
        shown = [json.loads(line) for line in lines(response)]
        assert [row["task_id"] for row in shown] == [str(task.id) for task in reversed(tasks)]
        assert shown[0] == alice.get(TASKS).data["results"][0]

    def test_csv_cells_are_not_formulas(self, alice, staff, stored):
        stored("=HYPERLINK(1)", capabilities=("gpu", "fast"))
        client = staff("view_task")
        response = client.http.get(f"{EXPORT}?format=csv&fields=user,capabilities,attempt,finished_at")
        assert response.headers["Content-Disposition"] == 'attachment; filename="tasks.csv"'
        assert list(csv.reader(lines(response))) == [
            ["user", "required_capabilities", "attempt", "completed_at"],
            ["'=HYPERLINK(1)", "fast gpu", "0", ""],
        ]
        assert lines(alice.http.get(f"{EXPORT}?format=csv&fields=user")) == ["user"]
        assert alice.get(f"{EXPORT}?format=xls").data["code"] == "unknown_format"


class TestActions:
    def test_a_dry_run_changes_nothing(self, alice, stored):
        task = stored()
        stored("bob")
        response = alice.post(ACTIONS, {"action": "cancel", "filter": {}, "dry_run": True})
        assert (response.status_code, response.data) == (200, {"dry_run": True, "count": 1, "sample": [str(task.id)]})
        assert not Operation.objects.exists()

    def test_users_act_on_their_own_tasks_and_staff_on_all(self, alice, staff, stored):
        mine, foreign = stored(), stored("bob")
        response = alice.post(ACTIONS, {"action": "cancel", "ids": [str(mine.id), str(foreign.id), str(uuid.uuid4())]})
        assert response.status_code == 202
        assert (response.data["state"], response.data["total"], response.data["changed"]) == ("done", 1, 1)
        assert alice.get(response.headers["Location"].removeprefix("http://testserver")).data == response.data
        foreign.refresh_from_db()
        assert foreign.status == "queued"
        body = {"action": "reprioritise", "priority": "high", "filter": {"queue": "default", "status": ["queued"]}}
        for client, changed in ((alice, 0), (staff("view_task"), 0), (staff("view_task", "reprioritise_task"), 1)):
            assert client.post(ACTIONS, body).data["changed"] == changed
        assert alice.post(ACTIONS, {"action": "cancel", "filter": {"user": "bob"}}).data["total"] == 0
        assert alice.post(ACTIONS, {"action": "replay", "filter": {}}).status_code == 403

    def test_operations_belong_to_the_caller(self, alice, bob, staff, stored, monkeypatch, settings):
        monkeypatch.setattr(
            "queue_app.api.views.operations.advance_for", lambda found, _: Operation.objects.get(pk=found)
        )
        stored(parameters={"code": "s3cret"})
        body = {"action": "cancel", "filter": {"parameters": {"code": "s3cret"}}, "reason": "mistake"}
        response = alice.post(ACTIONS, body)
        assert (response.data["state"], response.data["remaining"]) == ("running", 1)
        address = f"/api/v1/operations/{response.data['operation_id']}"
        settings.TASKQUEUE = settings.TASKQUEUE | {"SENSITIVE": ["code"]}
        assert "s3cret" not in json.dumps(alice.get(address).data)
        assert [client.get(address).status_code for client in (bob, staff(), staff("view_operation"))] == [
            404,
            404,
            200,
        ]
        assert staff("view_operation").delete(address).status_code == 403
        assert alice.delete(address).data["state"] == "cancelled"
        assert alice.delete(address).data["code"] == "operation_ended"
        assert run_operations() == 0

    @pytest.mark.parametrize(
        ("body", "code"),
        [
            ({}, "required"),
            ({"action": "explode", "filter": {}}, "unknown_action"),
            ({"action": "cancel"}, "required"),
            ({"action": "cancel", "ids": [], "filter": {}}, "conflicting_fields"),
            ({"action": "cancel", "priority": "high", "filter": {}}, "conflicting_fields"),
            ({"action": "reprioritise", "filter": {}}, "conflicting_fields"),
            ({"action": "cancel", "filter": {"colour": "red"}}, "unknown_field"),
            ({"action": "cancel", "filter": {"parameters": 5}}, "object_expected"),
            ({"action": "cancel", "ids": [str(uuid.uuid4())] * 1001}, "too_many"),
        ],
    )
    def test_invalid_requests(self, alice, body, code):
        response = alice.post(ACTIONS, body)
        assert response.status_code == 400
        codes = {error["code"] for error in response.data["errors"]}
        assert code in codes or response.data["code"] == code
        assert not Operation.objects.exists()
