"""POST /api/v1/tasks: rows and answers."""

from __future__ import annotations

import json
import uuid
from datetime import UTC, datetime, timedelta

import pytest

from queue_app import registry, task
from queue_app.core.priorities import Band
from queue_app.exceptions import WrongArguments
from queue_app.models import Queue, Task

TASKS = "/api/v1/tasks"


def stored_task(response) -> Task:
    return Task.objects.get(pk=uuid.UUID(response.data["task_id"]))


@pytest.mark.parametrize("path", ["/api/v1/tasks", "/api/v1/tasks/"])
def test_stores_the_task_and_returns_its_address(alice, plain_type, path):
    response = alice.post(path, {"task_type": plain_type, "parameters": {"a": [1, None, "ü"]}})
    task = stored_task(response)
    assert response.status_code == 201
    assert response.headers["Location"] == f"http://testserver/api/v1/tasks/{task.id}"
    assert (response.data["status"], response.data["replayed"], response.data["task_type"]) == (
        "queued",
        False,
        plain_type,
    )
    assert (task.user, task.queue, task.band, task.payload.parameters) == (
        "alice",
        "default",
        Band.NORMAL,
        {"a": [1, None, "ü"]},
    )


def test_missing_fields_default_to_the_registered_task(alice, render_type):
    response = alice.submit(task_type=render_type)
    task = stored_task(response)
    assert (task.queue, task.band, task.capabilities) == ("renders", Band.HIGH, ["big-memory", "gpu"])
    assert (task.timeout, task.max_retries, task.retry_delay) == (60, 2, 1.5)
    assert response.data["required_capabilities"] == ["big-memory", "gpu"]
    assert Queue.objects.filter(name="renders").exists()  # a queue is created on first use


def test_the_body_overrides_the_registered_task(alice, render_type):
    body = {
        "queue": "reports",
        "priority": "low",
        "required_capabilities": ["cpu", "cpu"],
        "timeout_seconds": 5,
        "max_retries": 0,
        "idempotency_key": "k" * 64,
    }
    task = stored_task(alice.submit(task_type=render_type, parameters={"frame": 3}, **body))
    assert (task.queue, task.band, task.capabilities) == ("reports", Band.LOW, ["cpu"])
    assert (task.timeout, task.max_retries, task.idempotency_key) == (5, 0, "k" * 64)


def test_every_answer_about_a_task_has_its_trace(alice, plain_type):
    trace, key = "0af7651916cd43dd8448eb211c80319c", {"Idempotency-Key": "once"}
    header = {"traceparent": f"00-{trace}-b7ad6b7169203331-01"}
    own = alice.submit(task_type=plain_type)
    body = {"task_type": plain_type}
    sent, again = alice.post(TASKS, body, **header, **key), alice.post(TASKS, body, **key)
    assert (own.data["trace_id"], sent.data["trace_id"], again.data["trace_id"]) == (
        uuid.UUID(own.data["task_id"]).hex, trace, trace
    )  # fmt: skip
    assert [task["trace_id"] for task in alice.get(TASKS).data["results"]] == [trace, own.data["trace_id"]]
    exported = alice.http.get(f"{TASKS}/export?fields=trace_id").getvalue().decode().splitlines()
    assert [json.loads(line)["trace_id"] for line in exported] == [trace, own.data["trace_id"]]
    assert alice.get(f"{TASKS}/{sent.data['task_id']}").data["trace_id"] == trace


def test_null_means_missing(alice, render_type):
    names = "queue priority required_capabilities run_after delay timeout_seconds max_retries idempotency_key"
    nothing = dict.fromkeys(names.split())
    task = stored_task(alice.submit(task_type=render_type, **nothing))
    assert (task.queue, task.band, task.timeout, task.max_retries) == ("renders", Band.HIGH, 60, 2)


@pytest.mark.parametrize(
    ("name", "band"),
    [*((band.label, band) for band in Band), ("medium", Band.NORMAL)],
)
def test_every_band_has_its_name(alice, plain_type, name, band):
    response = alice.submit(task_type=plain_type, priority=name)
    assert stored_task(response).band is band
    assert response.data["priority"] == band.label


@pytest.mark.parametrize(
    "moment",
    ["2030-01-31T12:00:00Z", "2030-01-31t14:00:00.000000+02:00", "2030-01-31 12:00Z", "2030-01-31T12:00:00.000000000Z"],
)
def test_a_later_time_schedules(alice, plain_type, moment):
    response = alice.submit(task_type=plain_type, run_after=moment)
    assert (response.data["status"], response.data["queue_position"]) == ("scheduled", None)
    assert stored_task(response).run_after == datetime(2030, 1, 31, 12, tzinfo=UTC)


@pytest.mark.parametrize(("delay", "status"), [(0, "queued"), (0.5, "scheduled"), (3600, "scheduled")])
def test_a_delay_counts_from_the_clock_of_the_database(alice, plain_type, delay, status):
    task = stored_task(alice.submit(task_type=plain_type, delay=delay))
    assert task.status == status
    if delay:
        assert abs(task.run_after - task.created_at - timedelta(seconds=delay)) < timedelta(seconds=5)


@pytest.mark.django_db(transaction=True)
def test_queue_position_counts_the_tasks_that_run_before(alice, plain_type):
    positions = [
        alice.submit(task_type=plain_type, priority=priority).data["queue_position"]
        for priority in ("normal", "normal", "critical", "low", "critical")
    ]
    assert positions == [1, 2, 1, 4, 2]


@pytest.mark.django_db(transaction=True)
def test_accepts_tasks_while_the_index_is_away(alice, plain_type, index_away):
    for _ in range(2):  # the second one does not ask the index
        response = alice.submit(task_type=plain_type, idempotency_key=None)
        assert (response.status_code, response.data["status"], response.data["queue_position"]) == (201, "queued", None)
    assert Task.objects.count() == 2


class TestIdempotencyKey:
    def test_replays(self, alice, plain_type):
        first = alice.submit(task_type=plain_type, parameters={"n": 1}, idempotency_key="once")
        again = alice.submit(task_type=plain_type, parameters={"n": 1}, idempotency_key="once", priority="low")
        assert (first.status_code, again.status_code) == (201, 200)
        assert (first.data["replayed"], again.data["replayed"]) == (False, True)
        assert again.data["task_id"] == first.data["task_id"]
        assert again.data["priority"] == "normal"  # as it is stored
        assert Task.objects.count() == 1

    def test_header(self, alice, plain_type):
        body = {"task_type": plain_type}
        header = {"Idempotency-Key": "once"}
        first = alice.call("POST", "/api/v1/tasks", body, **header)
        again = alice.submit(**body, idempotency_key="once")
        both = alice.call("POST", "/api/v1/tasks", body | {"idempotency_key": "once"}, **header)
        assert [r.status_code for r in (first, again, both)] == [201, 200, 200]
        assert [r.headers.get("Idempotency-Replayed") for r in (first, again, both)] == [None, "true", "true"]
        assert first.data["task_id"] == again.data["task_id"] == both.data["task_id"]

    @pytest.mark.parametrize("change", [{"parameters": {"n": 2}}, {"task_type": "render", "parameters": {"frame": 1}}])
    def test_conflicts_with_another_task(self, alice, plain_type, render_type, change):
        body = {"task_type": plain_type, "parameters": {"n": 1}, "idempotency_key": "once"}
        alice.submit(**body)
        response = alice.submit(**body | change | ({"task_type": render_type} if "task_type" in change else {}))
        assert (response.status_code, response.data["code"]) == (409, "idempotency_conflict")
        assert Task.objects.count() == 1

    def test_belongs_to_one_user(self, alice, bob, plain_type):
        answers = [client.submit(task_type=plain_type, idempotency_key="once") for client in (alice, bob)]
        assert [answer.status_code for answer in answers] == [201, 201]
        assert answers[0].data["task_id"] != answers[1].data["task_id"]

    def test_returns_the_status_of_the_first_task(self, alice, stored, plain_type):
        task = stored(idempotency_key="once", status="completed")
        response = alice.submit(task_type=plain_type, idempotency_key="once")
        assert (response.data["task_id"], response.data["status"]) == (str(task.id), "completed")


def test_the_user_is_always_the_caller(staff, plain_type):
    client = staff("view_task", "add_task", "change_task")
    assert client.submit(task_type=plain_type, user="alice").data["code"] == "read_only_field"
    assert stored_task(client.submit(task_type=plain_type)).user == client.user.username


@pytest.mark.parametrize("path", [TASKS, f"{TASKS}/bulk", "/api/v1/workflows"])
def test_submitting_needs_a_permission_unless_a_setting_says_otherwise(alice, staff, settings, row_counts, path):
    alice.user.user_permissions.clear()
    before = row_counts()
    answer = alice.post(path, {})
    assert (answer.status_code, answer.data["code"]) == (403, "permission_denied")
    assert "queue_app.add_task" in answer.data["detail"]
    assert row_counts() == before
    assert staff("add_task").post(path, {}).status_code == 400
    settings.TASKQUEUE = {**settings.TASKQUEUE, "API": {"SUBMIT_NEEDS_PERMISSION": False}}
    assert alice.post(path, {}).status_code == 400
    assert alice.get(TASKS).status_code == 200


@task(queue_name="default")
def of_order(order_id: int, *, note: str = "swordfish") -> None:
    """Take an order."""


class TestWrongArguments:
    @pytest.mark.parametrize("parameters", [{}, {"order": 1}, {"order_id": 1, "colour": "red"}])
    def test_are_refused_with_the_signature(self, alice, row_counts, parameters):
        before = row_counts()
        body = {"task_type": registry.type_of(of_order), "parameters": parameters}
        for answer in (alice.submit(**body), alice.post("/api/v1/tasks/bulk", {"tasks": [body]})):
            assert (answer.status_code, answer.data["code"]) == (422, "wrong_arguments")
            [error] = answer.data["errors"]
            assert error["field"].endswith("parameters")
            assert error["signature"].startswith("(order_id: ")
            assert "swordfish" not in answer.content.decode()
        with pytest.raises(WrongArguments):
            of_order.enqueue(**parameters)
        with pytest.raises(WrongArguments):
            of_order.get_backend().enqueue_many(of_order, [([1], {}), ([], parameters)])
        assert row_counts() == before
