"""System E, the priority task queue: its documented requests and answers, word for word.

What the documents leave open ("uuid", "...") is checked by its shape. Answers may say more than the documents.
"""

import re
import uuid
from datetime import datetime, timedelta
from typing import Any

import pytest
from django.test import Client
from django.utils import timezone

from queue_app import conf, task
from queue_app.compat.settings import set_priorities, translated
from queue_app.models import PriorityPolicy, Task, Worker
from queue_app.remote import tokens
from queue_app.services.repair.reap import reap
from queue_app.services.upkeep.promote import promote
from queue_app.sql import workers as rows
from tests.queue_app.api.conftest import ApiClient
from tests.support.factories import StaffFactory

TASKS = "/api/v1/tasks"


@task(task_type="process_video")
def process_video(**parameters: Any) -> Any:
    return parameters


@pytest.fixture
def client(engine):
    return ApiClient(StaffFactory(permissions=("view_queue", "view_worker", "view_task", "add_task")))


class Remote:
    """A worker of system E: it knows the documents of E and nothing else."""

    def __init__(self, *capabilities: str) -> None:
        secret = tokens.create(f"e-{uuid.uuid4().hex[:4]}", capabilities=["gpu", "cpu-intensive"])[1]
        self.http = Client(HTTP_AUTHORIZATION=f"Bearer {secret}")
        self.answer = self.post("register", {"capabilities": list(capabilities), "capacity": 5})
        self.id = self.answer.json()["worker_id"]

    def post(self, path: str, body: Any) -> Any:
        return self.http.post(f"/internal/workers/{path}", body, content_type="application/json")

    def call(self, what: str, **body: Any) -> Any:
        return self.post(f"{self.id}/{what}", body)

    def poll(self, available_capacity: int = 3) -> list[dict[str, Any]]:
        return self.call("poll", capabilities=["gpu"], available_capacity=available_capacity).json()["tasks"]


def submission(**changes: Any) -> dict[str, Any]:
    return {
        "task_type": "process_video",
        "priority": "high",
        "parameters": {"video": 7},
        "required_capabilities": ["gpu"],
        "timeout_seconds": 600,
        "idempotency_key": "optional-key",
    } | changes


def has_shape(data: dict[str, Any], **kinds: Any) -> bool:
    """Whether the data has these names, with values of these types or exactly these values."""
    for name, kind in kinds.items():
        value = data[name]
        assert isinstance(value, kind) if isinstance(kind, type) else value == kind, (name, value)
    return True


def test_submit_look_and_cancel(client):
    answer = client.post(TASKS, submission())
    assert answer.status_code == 201
    assert has_shape(answer.data, task_id=str, status="queued", queue_position=1)
    uuid.UUID(answer.data["task_id"])
    again = client.post(TASKS, submission())
    assert (again.status_code, again.data["task_id"]) == (200, answer.data["task_id"])
    path = f"{TASKS}/{answer.data['task_id']}"
    found = client.get(path).data
    assert has_shape(
        found, task_id=answer.data["task_id"], status="queued", priority="high", effective_priority="high",
        created_at=str, started_at=None, completed_at=None, assigned_worker_id=None, result=None, error=None,
        retry_count=0, max_retries=5, timeout_seconds=600, idempotency_key="optional-key",
        required_capabilities=["gpu"], task_type="process_video", parameters={"video": 7},
    )  # fmt: skip
    assert found["trace_id"] == uuid.UUID(found["task_id"]).hex, "the task begins a trace, as the caller sent none"
    cancelled = client.delete(path).data
    assert has_shape(cancelled, task_id=answer.data["task_id"], status="cancelled")


def test_medium_is_another_name_of_normal(client):
    found = client.post(TASKS, submission(priority="medium"))
    assert found.data["priority"] == "normal", "as the table in the reference says"
    assert client.get(f"{TASKS}?priority=medium").data["results"][0]["task_id"] == found.data["task_id"]


def test_a_worker_registers_polls_reports_and_sends_heartbeats(client):
    task_id = client.post(TASKS, submission()).data["task_id"]
    worker = Remote("gpu")
    assert worker.answer.status_code == 201
    assert has_shape(worker.answer.json(), worker_id=str, poll_interval_ms=1000)
    polled = worker.call("poll", capabilities=["gpu"], available_capacity=3).json()
    assert polled["poll_interval_ms"] == 1000
    [got] = polled["tasks"]
    trace = uuid.UUID(task_id).hex
    assert has_shape(
        got, task_id=task_id, task_type="process_video", parameters={"video": 7}, timeout_seconds=600, trace_id=trace
    )
    running = client.get(f"{TASKS}/{task_id}").data
    assert has_shape(running, status="executing", assigned_worker_id=worker.id, started_at=str)
    assert has_shape(worker.call("heartbeat", current_load=1, status="active").json(), acknowledged=True)
    assert Worker.objects.get().free_slots == 4, "it polls for the rest, so a task that waits is a stall"
    [shown] = client.get("/api/v1/workers").data["results"]
    assert has_shape(
        shown, worker_id=worker.id, status="active", current_tasks=[task_id], last_heartbeat=str, capacity=5,
        current_load=1, capabilities=["gpu"], version=str,
    )  # fmt: skip
    report = {"task_id": task_id, "status": "completed", "result": {"frames": 9}}
    assert worker.call("result", **report).status_code == 200
    assert worker.call("result", **report).json()["replayed"] is True, "the answer may have been lost"
    done = client.get(f"{TASKS}/{task_id}").data
    assert has_shape(done, status="completed", result={"frames": 9}, completed_at=str, error=None)
    datetime.fromisoformat(done["completed_at"])


def test_a_failure_is_counted_told_and_retried_in_the_priority_of_the_task(client):
    task_id = client.post(TASKS, submission(priority="low")).data["task_id"]
    worker = Remote("gpu")
    worker.poll()
    error = {"message": "the codec is unknown", "retriable": True}
    assert worker.call("result", task_id=task_id, status="failed", error=error).status_code == 200
    assert worker.call("result", task_id=task_id, status="failed", error=error).json()["replayed"] is True
    found = client.get(f"{TASKS}/{task_id}").data
    assert has_shape(found, status="scheduled", retry_count=1, priority="low", max_retries=2)
    assert {name: found["error"][name] for name in error} == error
    assert found["attempts"][0]["trace_id"] == found["trace_id"]


def test_an_error_that_is_not_retriable_ends_the_task(client):
    task_id = client.post(TASKS, submission()).data["task_id"]
    worker = Remote("gpu")
    worker.poll()
    worker.call("result", task_id=task_id, status="failed", error={"message": "no such video", "retriable": False})
    found = client.get(f"{TASKS}/{task_id}").data
    assert (found["status"], found["error"]["retriable"]) == ("failed", False)


def test_a_stale_result_without_a_number_is_refused(client):
    task_id = client.post(TASKS, submission()).data["task_id"]
    slow, other = Remote("gpu"), Remote("gpu")
    slow.poll()
    slow.call("deregister")
    [got] = Remote("gpu").poll()
    assert got["task_id"] == task_id
    report = {"task_id": task_id, "status": "completed", "result": {"by": "slow"}}
    assert slow.call("result", **report).json()["code"] == "worker_lost"
    assert other.call("result", **report).json()["code"] == "stale_lease"
    assert Task.objects.get(pk=task_id).status == "executing"


def test_a_draining_worker_is_shown_and_gets_no_new_task(client):
    client.post(TASKS, submission())
    worker = Remote("gpu")
    worker.call("heartbeat", current_load=0, status="draining")
    assert client.get("/api/v1/queue/stats").data["workers"]["draining"] == 1
    assert worker.poll() == []
    worker.call("heartbeat", current_load=0, status="active")
    assert len(worker.poll()) == 1


def test_a_worker_that_misses_three_heartbeats_is_dead_and_its_tasks_run_again(client):
    task_id = client.post(TASKS, submission()).data["task_id"]
    worker = Remote("gpu")
    worker.poll()
    [heartbeat] = rows.heartbeats()
    assert reap({uuid.UUID(worker.id): heartbeat.split(" ", 2)[2]}) == 1, "as the scheduler does after 90 s"
    workers = client.get("/api/v1/queue/stats").data["workers"]
    assert (workers["active"], workers["dead"]) == (0, 1)
    assert worker.call("heartbeat", current_load=1, status="active").json()["code"] == "worker_lost"
    [got] = Remote("gpu").poll()
    assert got["task_id"] == task_id


#: Metric -> its labels.
METRICS = {
    "queue_depth": {"priority"},
    "queue_age_seconds": {"priority", "percentile"},
    "tasks_promoted_total": {"from", "to"},
    "task_duration_seconds_count": {"priority", "status"},
    "task_retries_total": {"priority", "reason"},
    "task_state_total": {"status"},
    "workers_total": {"status"},
    "worker_capacity_used_ratio": set(),
    "worker_heartbeat_failures_total": set(),
    "tasks_failed_total": {"reason"},
    "tasks_dlq_total": set(),
}


def test_metrics(client):
    task_id = client.post(TASKS, submission()).data["task_id"]
    worker = Remote("gpu")
    worker.poll()
    worker.call("result", task_id=task_id, status="completed", result={})
    text = client.http.get("/metrics").content.decode()
    for name, labels in METRICS.items():
        [*lines] = re.findall(rf"^{name}(?:{{(.*)}})? ", text, re.MULTILINE)
        assert lines, name
        assert labels <= set(re.findall(r'(\w+)="', lines[0])), name


def test_statistics(client):
    for priority in ("high", "high", "medium", "low"):
        client.post(TASKS, submission(priority=priority, idempotency_key=None))
    worker = Remote("gpu")
    [first] = worker.poll(1)
    worker.poll(1)
    worker.call("result", task_id=first["task_id"], status="completed", result={})
    found = client.get("/api/v1/queue/stats").data
    assert {band: found["queues"][band]["depth"] for band in ("high", "normal", "low")} == {
        "high": 0, "normal": 1, "low": 1,
    }  # fmt: skip
    assert 0 <= found["queues"]["low"]["oldest_age_seconds"] < 60
    assert found["queues"]["high"]["oldest_age_seconds"] is None
    assert found["workers"] == {"active": 1, "draining": 0, "dead": 0, "total_capacity": 5, "used_capacity": 1}
    assert has_shape(found["throughput"], completed_last_minute=1, failed_last_minute=0)


def test_a_low_task_is_treated_as_medium_after_ten_minutes(client):
    task_id = client.post(TASKS, submission(priority="low")).data["task_id"]
    Task.objects.filter(pk=task_id).update(queued_at=timezone.now() - timedelta(seconds=601))
    promote()
    found = client.get(f"{TASKS}/{task_id}").data
    assert (found["priority"], found["effective_priority"]) == ("low", "normal")


def test_statistics_and_metrics_say_medium_if_asked(client, settings):
    settings.TASKQUEUE = {**settings.TASKQUEUE, "SAYS_MEDIUM": True}
    client.post(TASKS, submission(priority="medium"))
    found = client.get("/api/v1/queue/stats").data["queues"]
    assert (found["medium"]["depth"], "normal" in found) == (1, False)
    text = client.http.get("/metrics").content.decode()
    assert re.search(r'^queue_depth\{[^}]*priority="medium"[^}]*\} 1', text, re.MULTILINE)
    assert 'priority="normal"' not in text


def test_the_configuration_of_priorities_is_taken_as_it_is(engine, settings):
    given = {
        "high": {"max_retries": 5, "timeout_seconds": 300},
        "medium": {"max_retries": 3, "timeout_seconds": 600},
        "low": {"max_retries": 2, "timeout_seconds": 900},
        "starvation_prevention": {
            "low_to_medium_seconds": 601, "medium_to_high_seconds": 1201,
            "promotion_interval_seconds": 60, "promotion_batch_size": 100,
        },
    }  # fmt: skip
    settings.TASKQUEUE = translated(given)
    found = conf.get().scheduler
    assert (found.maintenance_seconds, found.promote_batch) == (60.0, 100)
    set_priorities(given, by="ann")
    stored = {policy.priority: policy for policy in PriorityPolicy.objects.all()}
    assert [stored[band].timeout_seconds for band in (1, 2, 3)] == [300, 600, 900]
    assert [stored[band].promote_after_seconds for band in (2, 3)] == [1201, 601]
