"""Many tasks by COPY: the same rows as one by one, in the order of the call."""

from datetime import UTC, datetime

import pytest
from django.db import DatabaseError, connection

from queue_app.core.priorities import Band
from queue_app.models import Task, TaskPayload
from queue_app.services.enqueue.store import enqueue, enqueue_calls, enqueue_many
from queue_app.services.enqueue.validate import check_spec
from tests.support.engine import new, put, put_many, row, take_ids

LATER = datetime(2030, 1, 1, tzinfo=UTC)


def test_single_and_bulk_store_the_same_columns(engine):
    options = {
        "args": [1, {"ü": "\t\\N\n\\."}],
        "parameters": {"text": 'a\tb\\c\n"d" {}', "none": None, "float": 1.5},
        "queue": "q.1",
        "priority": Band.LOW,
        "capabilities": ("ssd", "gpu", "ssd"),
        "user": "ann\\N",
        "timeout": 12.5,
        "max_retries": 0,
        "retry_delay": 3,
    }
    for extra in ({}, {"run_after": LATER}, {"run_after": datetime(2020, 1, 1, tzinfo=UTC)}):
        single = enqueue(new("päckage.f", **options, **extra)).id
        keyed = enqueue_many([new("päckage.f", **options, **extra, idempotency_key=f"k{len(extra)}{extra}"[:60])])[0].id
        bulk = enqueue_many([new("päckage.f", **options, **extra)])[0].id
        one, two, three = (
            Task.objects.filter(pk=task_id).values().get() | TaskPayload.objects.filter(pk=task_id).values().get()
            for task_id in (single, keyed, bulk)
        )
        for columns in (one, two, three):
            assert (columns["queued_at"] is None) == (columns["status"] == "scheduled")
            for name in ("id", "task_id", "created_at", "queued_at", "idempotency_key"):
                columns.pop(name)
        assert one == two == three
        assert one["capabilities"] == ["gpu", "ssd"]


def test_bulk_keeps_the_order_of_the_call_over_lanes_and_queues(engine):
    hand = engine.worker("a b")
    stored = enqueue_many(
        new("ab"[n % 2], queue=f"q{n % 3}", idempotency_key=f"k{n}" if n % 5 == 0 else None) for n in range(100)
    )
    plain = [one.id for n, one in enumerate(stored) if n % 5]
    claimed = take_ids(hand, 100)
    assert [task_id for task_id in claimed if task_id in set(plain)] == plain
    assert len(claimed) == 100


@pytest.mark.parametrize("kinds", ["a", "ab"])
def test_tasks_enqueued_after_a_bulk_come_after_it(engine, kinds):
    """Tasks of a bulk over several lanes are queued 8 µs apart: the last must not lie in the future."""
    many = enqueue_many(new(kinds[n % len(kinds)]) for n in range(3000))
    after = put("a")
    newest = Task.objects.filter(pk__in=[one.id for one in many]).order_by("-queued_at").first().queued_at
    assert row(after).queued_at > newest


def test_results_that_cannot_be_made_store_nothing(engine):
    """They are made while the server stores the tasks, so the COPY is under way by then."""

    def fail(results):
        assert [result.created for result in results] == [True] * 3
        raise RuntimeError("no result")

    with pytest.raises(RuntimeError, match="no result"):
        enqueue_calls(check_spec(new("a")), [([], {})] * 3, fail)
    assert not Task.objects.exists()
    assert not TaskPayload.objects.exists()
    assert engine.check().waiting == set()
    assert enqueue_calls(check_spec(new("a")), [([], {})] * 3, len) == 3  # the connection serves on


def test_errors_of_the_copy_are_djangos(engine):
    """A disk that is full, for example. Here a check of the table refuses the rows."""
    with connection.cursor() as cursor:
        cursor.execute("ALTER TABLE queue_app_task ADD CONSTRAINT none_today CHECK (queue <> 'default') NOT VALID")
    try:
        with pytest.raises(DatabaseError, match="none_today"):
            put_many(2)
    finally:
        with connection.cursor() as cursor:
            cursor.execute("ALTER TABLE queue_app_task DROP CONSTRAINT none_today")
