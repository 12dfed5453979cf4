"""What a worker gives back returns to its place, and frees only its own slot."""

import pytest

from queue_app.core.states import Status
from queue_app.services import reconcile
from queue_app.services.cancel import cancel
from queue_app.services.claim import give_back
from queue_app.services.reconcile import Reconciler
from tests.support.engine import (
    assert_index_agrees,
    index_away,
    put,
    put_many,
    row,
    status,
    take,
)


@pytest.fixture
def impatient(monkeypatch) -> None:
    """Let the reconciler take every lease of a queued row for abandoned."""
    monkeypatch.setattr(reconcile, "ABANDONED_SECONDS", -1)


def test_what_is_given_back_keeps_its_place_and_counts_no_failure(engine, history):
    ids = put_many(3)
    hand = engine.worker()
    before = row(ids[0]).queued_at
    [task] = take(hand)
    assert give_back([task]) == 1
    stored = row(task.id)
    assert (stored.status, stored.failures, stored.attempt, stored.queued_at) == ("queued", 0, 1, before)
    assert (stored.worker_id, stored.started_at, stored.deadline) == (None, None, None)
    assert_index_agrees()
    assert [(task.id, task.attempt) for task in take(hand, 3)] == [(ids[0], 2), (ids[1], 1), (ids[2], 1)]


def test_giving_back_frees_the_slot_and_calls_somebody(engine):
    from queue_app.services.queues import set_queue_limits  # noqa: PLC0415 - as above

    set_queue_limits("default", max_concurrent=1)
    put_many(2)
    hand, other = engine.worker(), engine.worker()
    tasks = take(hand)
    assert take(other) == []
    give_back(tasks)
    assert engine.called(other)
    assert_index_agrees()


def test_only_the_attempt_that_holds_a_task_can_give_it_back(engine):
    put()
    hand = engine.worker()
    stale = take(hand)
    give_back(stale)
    [current] = take(hand)
    assert give_back(stale) == 0
    assert row(current.id).attempt == 2
    assert status(current.id) is Status.EXECUTING
    assert_index_agrees()


def test_a_task_that_was_to_be_cancelled_ends_when_it_is_given_back(engine, history):
    put()
    tasks = take(engine.worker())
    assert cancel(tasks[0].id) is Status.EXECUTING
    assert give_back(tasks) == 1
    assert history.states(tasks[0].id) == "queued executing cancelled"
    assert_index_agrees()


@pytest.mark.parametrize("script", ["release", "push"])
def test_giving_back_is_healed_when_the_index_does_not_hear_of_it(engine, script, impatient):
    [task_id] = put_many(1)
    tasks = take(engine.worker())
    with index_away(script):
        assert give_back(tasks) == 1
    assert status(task_id) is Status.QUEUED
    Reconciler().run_once()
    assert_index_agrees()


def test_nothing_to_give_back(engine):
    assert give_back([]) == 0


def test_a_late_give_back_does_not_free_the_slot_of_who_was_granted_the_task_meanwhile(engine):
    """The lease that the worker held has ended, and the task has another one by now."""
    hand = engine.worker()
    put()
    [task] = take(hand)
    engine.index.release([(task.id, task.queue)])
    engine.index.restore_leases([(task.id, task.ref.lane)])
    engine.index.release([(task.id, task.queue)])
    engine.index.push([task.ref])
    lease = engine.index.claim(hand.profile, hand.id, 1).leased_at
    assert lease != task.leased_at
    with index_away("push"):
        assert give_back([task]) == 1
    assert engine.check().queue_leases["default"] == {task.id: lease}
