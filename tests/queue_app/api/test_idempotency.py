"""``Idempotency-Key`` on requests that make or start something: a repetition gets the first answer."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.db import connections
from django.db.models import F

from queue_app.api import headers
from queue_app.models import AuditEntry, IdempotentRequest, Limit, Operation, Schedule, ScheduleTick, Signal, Workflow
from queue_app.services.upkeep.maintenance import purge
from tests.queue_app.api.conftest import ApiClient, assert_problem
from tests.support.factories import ScheduleFactory

API = "/api/v1"
ECHO = "taskqueue_project.demo.tasks.needs_gpu"
KEY = {"Idempotency-Key": "order-7"}
FLOW = {"name": "ship", "tasks": [{"name": "only", "task_type": ECHO, "parameters": {"run_id": 1}}]}
NIGHTLY = {"name": "nightly", "task_type": ECHO, "parameters": {"run_id": 1}, "cron": "0 3 * * *", "zone": "UTC"}
RANGE = {"start": "2026-01-01T00:00:00Z", "end": "2026-01-03T00:00:00Z"}


@pytest.fixture
def admin(db, queues) -> ApiClient:
    return ApiClient(User.objects.create_superuser("root"))


def count() -> int:
    """Return how much there is of everything that a request may make or start."""
    made = (Workflow, Schedule, ScheduleTick, Operation, Signal, Limit, AuditEntry)
    return sum(model.objects.count() for model in made)


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("workflows", FLOW),
        ("workflows/{flow}/signal", {"name": "go"}),
        ("workflows/{flow}/retry", {}),
        ("workflows/{flow}/cancel", {}),
        ("schedules", NIGHTLY),
        ("schedules/{schedule}/run", {}),
        ("schedules/{schedule}/backfill", RANGE),
        ("limits", {"scope": "key", "name": "acme", "max_concurrent": 1}),
        ("tasks/{task}/signal", {"name": "go"}),
        ("tasks/bulk-actions", {"action": "cancel", "filter": {}}),
        ("dlq/{letter}/replay", {}),
        ("dlq/replay", {"filter": {}}),
        ("dlq/discard", {"filter": {}}),
    ],
)
def test_a_repetition_gets_the_first_answer(admin, dead, path, body):
    flow = admin.post(f"{API}/workflows", FLOW | {"name": "before"}).data
    schedule = ScheduleFactory(name="minutely", task_type=ECHO, parameters={"run_id": 1}, every=86_400).pk
    names = {"flow": flow["id"], "task": flow["tasks"]["only"], "schedule": schedule, "letter": dead().id}
    address = f"{API}/{path.format(**names)}"
    first = admin.post(address, body, **KEY)
    assert first.status_code in {200, 201, 202}, first.data
    before = count()
    again = admin.post(address + "/", dict(reversed(body.items())), **KEY)
    assert (again.status_code, again.data) == (first.status_code, first.data)
    assert (again.headers["Idempotency-Replayed"], again.headers.get("Location")) == (
        "true", first.headers.get("Location")
    )  # fmt: skip
    assert "Idempotency-Replayed" not in first.headers
    assert count() == before, "nothing was made or recorded"


def test_another_body_or_address_is_refused_and_other_users_have_their_own_keys(admin):
    assert admin.post(f"{API}/workflows", FLOW, **KEY).status_code == 201
    assert_problem(admin.post(f"{API}/workflows", FLOW | {"name": "x"}, **KEY), 409, "idempotency_conflict")
    assert_problem(admin.post(f"{API}/schedules", NIGHTLY, **KEY), 409, "idempotency_conflict")
    other = ApiClient(User.objects.create_superuser("other"))
    assert other.post(f"{API}/workflows", FLOW, **KEY).status_code == 201
    assert Workflow.objects.count() == 2
    assert_problem(
        admin.post(f"{API}/workflows", FLOW, **{"Idempotency-Key": "k" * 65}), 400, "invalid", "idempotency_key"
    )


def test_a_refused_request_leaves_its_key(admin):
    assert_problem(admin.post(f"{API}/workflows", FLOW | {"tasks": []}, **KEY), 400, "blank")
    assert admin.post(f"{API}/workflows", FLOW, **KEY).status_code == 201


def test_a_crash_before_the_answer_is_stored_leaves_nothing_and_the_repetition_works(admin, monkeypatch):
    class Killed(BaseException):
        """The end of the process between the work and the record."""

    def kill(*_: Any) -> None:
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(headers, "keep_answer", kill)
        with pytest.raises(Killed):
            admin.post(f"{API}/workflows", FLOW, **KEY)
    assert (Workflow.objects.count(), IdempotentRequest.objects.count()) == (0, 0)
    assert admin.post(f"{API}/workflows", FLOW, **KEY).status_code == 201
    assert admin.post(f"{API}/workflows", FLOW, **KEY).status_code == 201
    assert Workflow.objects.count() == 1


def test_keys_are_free_again_after_their_retention_and_are_purged(admin):
    first = admin.post(f"{API}/workflows", FLOW, **KEY).data["id"]
    IdempotentRequest.objects.update(created_at=F("created_at") - timedelta(days=1, seconds=1))
    assert admin.post(f"{API}/workflows", FLOW, **KEY).data["id"] != first
    IdempotentRequest.objects.update(created_at=F("created_at") - timedelta(days=1, seconds=1))
    purge()
    assert not IdempotentRequest.objects.exists()


def test_twenty_requests_at_once_make_one_workflow(transactional_db, queues):
    user = User.objects.create_superuser("root")
    clients = [ApiClient(user) for _ in range(20)]

    def submit(client: ApiClient) -> tuple[int, Any]:
        try:
            answer = client.post(f"{API}/workflows", FLOW, **KEY)
            return answer.status_code, answer.data
        finally:
            connections.close_all()

    with ThreadPoolExecutor(20) as pool:
        answers = list(pool.map(submit, clients))
    assert Workflow.objects.count() == 1
    assert all(answer == answers[0] for answer in answers)
    assert answers[0][0] == 201
