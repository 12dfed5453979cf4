"""Unique tasks that are enqueued in bulk."""

import pytest
from django.tasks import default_task_backend

from queue_app.exceptions import UniqueConflict
from queue_app.models import Task
from queue_app.services.enqueue.store import enqueue, enqueue_many
from queue_app.sql import unique as rows
from tests.queue_app.services.enqueue.test_unique import parameters_of, ship, unique
from tests.support.engine import at_once, new, take_ids


@pytest.mark.parametrize("limit", [rows.MANY, 3])
def test_many_callers_in_bulk_store_each_key_once(engine, monkeypatch, limit):
    monkeypatch.setattr(rows, "MANY", limit)

    def store(start: int):
        return enqueue_many([unique(parameters={"n": (start + n) % 12}) for n in range(12)])

    answers = at_once(
        [*[lambda start=start: store(start) for start in range(10)], lambda: [enqueue(unique(parameters={"n": 5}))]]
    )
    assert Task.objects.count() == 12
    assert len({item.id for answer in answers for item in answer}) == 12
    assert sum(item.created for answer in answers for item in answer) == 12


def test_bulk_returns_the_task_that_stands_for_each_call(engine):
    first = ship.enqueue(1)
    made = default_task_backend.enqueue_many(ship, [((order,), {}) for order in (1, 2, 2, 3)])
    assert made[0].id == first.id
    assert made[1].id == made[2].id != made[3].id
    assert Task.objects.count() == 3


def test_in_bulk_the_last_arguments_replace_the_earlier_ones(engine):
    first, second = enqueue_many([unique(on_conflict="replace", by=(), parameters={"n": n}) for n in (1, 2)])
    assert (first.id, first.created, second.created) == (second.id, True, False)
    assert parameters_of(first.id) == {"n": 2}


def test_bulk_with_a_conflict_stores_nothing(engine):
    rule = {"on_conflict": "raise"}
    with pytest.raises(UniqueConflict, match="Two tasks of this call"):
        enqueue_many([new("b"), unique(**rule), unique(**rule)])
    assert Task.objects.count() == 0


def test_unique_and_plain_tasks_keep_their_order_in_bulk(engine):
    stored = enqueue_many([new(parameters={"n": 0}), unique(parameters={"n": 1}), new(parameters={"n": 2})])
    assert [parameters_of(item.id)["n"] for item in stored] == [0, 1, 2]
    assert len(take_ids(engine.worker(), 3)) == 3
