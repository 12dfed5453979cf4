"""Every list has the same pages: a walk along ``next`` finds each row once, also while rows are stored."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from itertools import count
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.utils import timezone

from queue_app.api.views.docs import document
from queue_app.models import AuditEntry, Operation, ScheduleTick, Workflow
from tests.queue_app.api.conftest import ApiClient, assert_problem
from tests.support.factories import DeadLetterFactory, LimitFactory, QueueFactory, ScheduleFactory, WorkerFactory

API = "/api/v1"
NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
TICKS = f"{API}/schedules/{{schedule}}/ticks"


def operation(number: int) -> Operation:
    return Operation.objects.create(kind="cancel", target="tasks", by="root", total=1, created_at=timezone.now())


def tick(number: int, schedule: int) -> ScheduleTick:
    return ScheduleTick.objects.create(
        schedule_id=schedule, instant=NOON + timedelta(minutes=number), kind="missed", at=NOON, reason="paused", count=1
    )


@pytest.fixture
def admin(db) -> ApiClient:
    return ApiClient(User.objects.create_superuser("root"))


MAKERS: dict[str, tuple[Callable[..., Any], str]] = {
    f"{API}/queues": (lambda number: QueueFactory(name=f"q{number:03}-{number % 7}"), "name"),
    f"{API}/limits": (lambda number: LimitFactory(scope="key", name=f"key-{-number}"), "id"),
    f"{API}/workers": (lambda number: WorkerFactory(), "id"),
    f"{API}/schedules": (lambda number: ScheduleFactory(name=f"é {number:03}?&=+"), "name"),
    f"{API}/dlq": (lambda number: DeadLetterFactory(), "id"),
    f"{API}/operations": (operation, "id"),
    f"{API}/audit": (lambda number: AuditEntry.objects.create(at=NOON, via="api", action="pause", target="q"), "id"),
    f"{API}/workflows": (lambda number: Workflow.objects.create(name="w", created_at=NOON, nodes=1), "id"),
    TICKS: (tick, "instant"),
}


@pytest.mark.parametrize("path", MAKERS, ids=lambda path: path.rpartition("/")[2])
def test_a_walk_finds_every_row_once_while_rows_are_stored(path, admin):
    make, name = MAKERS[path]
    numbers = count()
    schedule = {"schedule": ScheduleFactory(name="minutely").pk} if path == TICKS else {}
    before = {str(getattr(make(next(numbers), **schedule), "pk", "")) for _ in range(5)}
    address = f"{path.format(**schedule)}?page_size=2"
    found: list[str] = []
    while address:
        answer = admin.get(address).data
        assert len(answer["results"]) <= 2
        found += [row[name] for row in answer["results"]]
        assert (answer["next"] is None) == (answer["next_cursor"] is None)
        address = answer["next"]
        if len(found) < 20:
            make(next(numbers), **schedule)
    assert len(found) == len(set(found)), "no row twice"
    if name == "id":
        assert before <= set(map(str, found))
    assert len(found) >= 5
    assert_problem(admin.get(f"{path.format(**schedule)}?cursor=no%00thing"), 400, "invalid_cursor", "cursor")


def test_the_bands_are_a_list_like_others(admin):
    first = admin.get(f"{API}/policies?page_size=3").data
    rest = admin.get(first["next"]).data
    assert [each["priority"] for each in first["results"] + rest["results"]] == [
        "critical", "high", "normal", "low", "background",
    ]  # fmt: skip


def test_every_list_in_the_document_has_the_same_parameters_and_answer():
    found = document()
    lists = [
        operation
        for path in found["paths"].values()
        for operation in path.values()
        if operation["operationId"].startswith("list_")
    ]
    assert len(lists) == 12
    for each in lists:
        assert {"cursor", "page_size"} <= {parameter["name"] for parameter in each["parameters"]}, each["operationId"]
        [name] = [media["schema"]["$ref"] for media in each["responses"]["200"]["content"].values()]
        page = found["components"]["schemas"][name.rpartition("/")[2]]
        assert page["required"] == ["results", "next_cursor", "next"]


def test_no_answer_is_described_inline():
    for path in document()["paths"].values():
        for operation in path.values():
            for status, answer in operation["responses"].items():
                for media in answer["content"].values():
                    assert "$ref" in media["schema"], (operation["operationId"], status)


def test_operations_of_others_and_the_audit_log_are_for_staff_with_the_permission(alice, staff):
    operation(0)
    assert alice.get(f"{API}/operations").data["results"] == []
    assert len(staff("view_operation").get(f"{API}/operations").data["results"]) == 1
    assert alice.get(f"{API}/audit").status_code == staff().get(f"{API}/audit").status_code == 403
    assert staff("view_auditentry").get(f"{API}/audit").data["results"] == []
