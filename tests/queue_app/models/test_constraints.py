"""Constraints of a task's row in PostgreSQL."""

import uuid
from datetime import UTC, datetime

import pytest
from django.db import IntegrityError, transaction

from queue_app.core.options import MAX_WEIGHT
from queue_app.core.states import TERMINAL
from queue_app.models import Task

NOW = datetime(2026, 1, 1, tzinfo=UTC)
LEASE = {"queued_at": NOW, "started_at": NOW, "deadline": NOW, "worker_id": uuid.UUID(int=1), "attempt": 1}
SOUND = {
    "queued": {"queued_at": NOW},
    "scheduled": {"run_after": NOW},
    "executing": LEASE,
    **{status.value: {"finished_at": NOW} for status in sorted(TERMINAL)},
}


def store(status: str, **fields: object) -> None:
    with transaction.atomic():
        Task.objects.create(task_type="a", queue="q", **{"status": status, "priority": 2, "created_at": NOW, **fields})


@pytest.mark.parametrize("status", SOUND)
def test_each_status_needs_its_times(rows, status):
    store(status, **SOUND[status])
    for missing in SOUND[status]:
        with pytest.raises(IntegrityError, match="taskqueue_lifecycle"):
            store(status, **{name: value for name, value in SOUND[status].items() if name != missing})


@pytest.mark.parametrize("status", ["queued", "scheduled", "executing"])
def test_a_task_that_has_not_ended_has_no_finished_at(rows, status):
    with pytest.raises(IntegrityError, match="taskqueue_lifecycle"):
        store(status, **SOUND[status], finished_at=NOW)


@pytest.mark.parametrize("facts", [*SOUND.values(), {}])
def test_no_other_status_is_known(rows, facts):
    with pytest.raises(IntegrityError, match="taskqueue_lifecycle"):
        store("waiting", **facts)


@pytest.mark.parametrize(
    "numbers",
    [
        {"priority": -1},
        {"priority": 5},
        {"failures": -1},
        {"attempt": 1, "failures": 2},
        {"crashes": -1},
        {"attempt": 1, "crashes": 2},
        {"weight": 0},
        {"weight": MAX_WEIGHT + 1},
        {"max_retries": -1},
        {"timeout": 0},
        {"queued_at": datetime(1969, 12, 31, tzinfo=UTC)},
        {"queued_at": datetime(2286, 1, 1, tzinfo=UTC)},
        {"run_after": datetime(1969, 12, 31, tzinfo=UTC)},
        # a null in one rule leaves the other rules in force
        {"weight": 0, "max_retries": None, "timeout": 1},
    ],
    ids=str,
)
def test_numbers_out_of_their_range(rows, numbers):
    with pytest.raises(IntegrityError, match="taskqueue_numbers"):
        store("queued", **{"queued_at": NOW} | numbers)


@pytest.mark.parametrize(
    "numbers",
    [
        {"priority": 0},
        {"priority": 4},
        {"attempt": 2, "failures": 2, "crashes": 2},
        {"weight": MAX_WEIGHT},
        {"max_retries": 0, "timeout": 0.1},
        {"max_retries": None, "timeout": None},
        {"queued_at": datetime(1970, 1, 1, tzinfo=UTC), "run_after": datetime(1970, 1, 1, tzinfo=UTC)},
        {"queued_at": datetime(2285, 12, 31, tzinfo=UTC), "run_after": datetime(2285, 12, 31, tzinfo=UTC)},
    ],
    ids=str,
)
def test_numbers_at_their_ends(rows, numbers):
    store("queued", **{"queued_at": NOW} | numbers)
