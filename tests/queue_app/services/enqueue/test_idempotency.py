"""Idempotency keys: for one key and user one task is stored while the key is valid."""

import uuid
from datetime import timedelta

import pytest
from django.db.models import F

from queue_app.core.states import Status
from queue_app.exceptions import IdempotencyConflict
from queue_app.models import Task, TaskPayload
from queue_app.services.enqueue.store import enqueue, enqueue_many
from tests.support.engine import assert_index_agrees, at_once, counted_calls, new, put, rolled_back, take_ids


def test_the_same_key_and_the_same_task_is_stored_once(engine, index):
    first = enqueue(new(args=[1], parameters={"a": 1, "b": 2}, idempotency_key="k", user="ann"))
    with counted_calls(index) as calls:
        again = enqueue(new(args=[1], parameters={"b": 2, "a": 1}, idempotency_key="k", user="ann"))
    assert first.status is Status.QUEUED
    assert again == first._replace(queued_at=None, created=False)
    assert calls == []
    assert Task.objects.count() == TaskPayload.objects.count() == 1


def test_a_replay_returns_the_present_status_of_the_first_task(engine):
    first = enqueue(new(idempotency_key="k"))
    take_ids(engine.worker())
    assert enqueue(new(idempotency_key="k")).status is Status.EXECUTING
    assert [one.id for one in enqueue_many([new(idempotency_key="k")] * 2)] == [first.id] * 2


def test_a_rolled_back_key_is_free_again(engine):
    with rolled_back():
        put(idempotency_key="k")
    assert enqueue(new(idempotency_key="k", args=["other"])).created


def test_racing_callers_in_bulk_with_one_key_store_one_row(engine):
    answers = at_once([lambda: enqueue_many([new(idempotency_key="k")])[0]] * 6)
    assert len({answer.id for answer in answers}) == 1
    assert sum(answer.created for answer in answers) == 1
    assert Task.objects.count() == TaskPayload.objects.count() == 1
    assert_index_agrees()


def let_keys_be(hours: float) -> None:
    """Move the creation of all tasks into the past."""
    Task.objects.update(created_at=F("created_at") - timedelta(hours=hours))


def test_a_key_stands_for_its_task_for_a_day(engine):
    first = enqueue(new(idempotency_key="k", user="ann"))
    let_keys_be(23.9)
    assert not enqueue(new(idempotency_key="k", user="ann")).created
    let_keys_be(0.2)
    for store in (enqueue, lambda task: enqueue_many([task])[0]):
        again = store(new(idempotency_key="k", user="ann", args=["other"]))
        assert again.created
        assert not store(new(idempotency_key="k", user="ann", args=["other"])).created
        let_keys_be(25)
    keys = Task.objects.filter(user="ann").values_list("id", "idempotency_key")
    assert dict(keys)[first.id] is None, "the old task is still there, without the key"
    assert len(keys) == 3


def test_the_period_is_a_setting(engine, settings):
    settings.TASKQUEUE = {**settings.TASKQUEUE, "RETENTION": {"IDEMPOTENCY_SECONDS": 60}}
    put(idempotency_key="k")
    let_keys_be(61 / 3600)
    assert enqueue(new(idempotency_key="k")).created


def test_a_refused_renewal_leaves_the_key_where_it_was(engine):
    first = put(idempotency_key="k")
    let_keys_be(25)
    with rolled_back():
        assert enqueue(new(idempotency_key="k")).created
    assert Task.objects.get().id == first
    assert Task.objects.get().idempotency_key == "k"


def test_a_hundred_racing_submitters_store_one_row(engine):
    """Ten connections at once, ten times each; the key is held by a task of yesterday."""
    put(idempotency_key="k", user="ann")
    let_keys_be(25)

    def submit() -> list[tuple[uuid.UUID, bool]]:
        answers = [enqueue(new(idempotency_key="k", user="ann", args=[1])) for _ in range(10)]
        return [(answer.id, answer.created) for answer in answers]

    answers = [answer for some in at_once([submit] * 10) for answer in some]
    assert len(answers) == 100
    assert sum(created for _, created in answers) == 1
    assert len({task_id for task_id, _ in answers}) == 1
    assert Task.objects.count() == 2
    with pytest.raises(IdempotencyConflict):
        enqueue(new(idempotency_key="k", user="ann", args=[2]))
