"""A worker that dies between index and row: what it was proposed is free, what it was granted is not."""

from django.db import transaction

from queue_app.index import get_index
from queue_app.models import Queue, Worker
from queue_app.services.lifecycle import claim as claim_service
from queue_app.services.repair.reap import mark_dead
from queue_app.sql import claim as claim_rows
from tests.support.engine import (
    Side,
    assert_index_agrees,
    put,
    put_many,
    somebody_waits_for_a_lock,
    take,
    take_ids,
    until,
)
from tests.support.factories import WorkerFactory


def registered(engine, hand) -> Worker:
    """Give the worker a row, as a process has."""
    return WorkerFactory(id=hand.id, profile=hand.profile.id)


def test_tasks_that_were_only_proposed_to_a_dead_worker_are_free_at_once(engine, hand):
    Queue.objects.filter(pk="default").update(max_concurrent=2)
    Queue.objects.get(pk="default").save()
    registered(engine, hand)
    granted, proposed = put_many(2)
    assert [task.id for task in take(hand)] == [granted]
    assert engine.index.claim(hand.profile, hand.id, 1).tasks == ((proposed, "default"),)
    other = engine.worker()
    assert take(other) == []
    mark_dead(hand.id)
    assert set(take_ids(other, 5)) == {granted, proposed}
    assert_index_agrees()


def test_a_dead_worker_is_granted_nothing(engine, hand):
    """Its statement was on its way when it died: the slot may belong to another worker by then."""
    registered(engine, hand)
    task_id = put()
    proposal = engine.index.claim(hand.profile, hand.id, 1)
    mark_dead(hand.id)
    assert claim_rows.claim([task_id], hand.id, proposal.generation, proposal.leased_at) == []


def test_a_grant_under_way_is_waited_for(engine, hand):
    """The worker died after it had sent its statement, which is then committed: the task counts as executing."""
    registered(engine, hand)
    task_id = put()
    proposal = engine.index.claim(hand.profile, hand.id, 1)
    with transaction.atomic():
        assert claim_rows.claim([task_id], hand.id, proposal.generation, proposal.leased_at)
        marking = Side(lambda: claim_service.withdraw_last(get_index(), hand.id))
        until(somebody_waits_for_a_lock, "it waits for the grant")
    assert marking.result() == 0
    assert engine.check().leases == {task_id}
