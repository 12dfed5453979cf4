"""A claim that meets locks, deaths, and servers that go away: every grant reaches its worker, or costs nothing."""

import threading
from unittest.mock import Mock

import pytest
from django.db import DatabaseError, connection, transaction

from queue_app.index import get_index
from queue_app.models import Queue, Task, TaskPayload, Worker
from queue_app.services.lifecycle import claim as claim_service
from queue_app.services.lifecycle.actions import cancel
from queue_app.services.notify.index import breaker
from queue_app.services.repair.reap import mark_dead
from queue_app.sql import claim as claim_rows
from queue_app.sql.database import GENERATION_LOCK, fetch_all
from tests.support.engine import (
    Side,
    assert_index_agrees,
    held_up,
    index_away,
    open_transaction,
    put,
    put_many,
    reconcile_later,
    row,
    take,
    take_ids,
)
from tests.support.factories import WorkerFactory
from tests.support.rows import erase


def test_granted_tasks_reach_the_worker_although_another_row_cannot_be_claimed(engine, hand):
    """A queued row that the claim cannot take (its payload is gone) must not take others along."""
    bad, good, later = put_many(3)
    erase(TaskPayload.objects.filter(pk=bad))
    assert take_ids(hand, 2) == [good]
    assert take_ids(hand, 2) == [later], "and it is out of the way"
    assert engine.check().leases == {bad, good, later}
    reconcile_later()
    assert engine.check().waiting == {bad}


def test_a_locked_row_does_not_hold_up_the_others(engine, hand, monkeypatch):
    """An open transaction cancelled it: the index proposes it until that transaction commits."""
    monkeypatch.setattr(claim_rows, "_LOCK", claim_rows._LOCK.replace("'1s'", "'10ms'"))
    ids = put_many(5)
    with open_transaction(lambda: Task.objects.select_for_update().get(pk=ids[1])):
        assert take_ids(hand, 3) == [ids[0], ids[2]]
        assert take_ids(hand, 3) == ids[3:], "and it is out of the way"
    reconcile_later()
    assert take_ids(hand, 3) == [ids[1]]
    assert_index_agrees()


@pytest.mark.parametrize("script", ["release", "push"])
def test_granted_tasks_reach_the_worker_although_the_index_goes_away(engine, script):
    refused, granted = put_many(2)
    with index_away("remove"):
        cancel(refused)
    with index_away(script):
        assert take_ids(engine.worker(), 2) == [granted]
    reconcile_later()
    assert_index_agrees()


def test_a_claim_that_dies_before_the_rows_costs_no_attempt(engine, hand, history, monkeypatch):
    task_id, other = put_many(2)
    with monkeypatch.context() as patch:
        patch.setattr(claim_rows, "claim", Mock(side_effect=DatabaseError("the connection broke")))
        with pytest.raises(DatabaseError):
            take(hand, 1)
    assert engine.check().leases == {task_id}
    reconcile_later()
    assert_index_agrees()
    assert take_ids(hand, 5) == [task_id, other], "in its old place"
    assert row(task_id).attempt == 1


def test_a_worker_whose_connection_broke_waits_for_its_grant(engine, hand, history):
    """The server still executes the grant behind a lock: a check before it has ended would never find the task."""
    [task_id] = put_many(1)
    proposal = engine.index.claim(hand.profile, hand.id, 1)
    under_way, go_on = threading.Event(), threading.Event()

    def grant():
        with transaction.atomic():
            fetch_all("SELECT pg_advisory_xact_lock_shared(%s)", [GENERATION_LOCK])
            under_way.set()
            assert go_on.wait(60)
            claim_rows.claim([task_id], hand.id, proposal.generation, proposal.leased_at)

    granting = Side(grant)
    assert under_way.wait(60)
    recovering = held_up(lambda: claim_service.recover(hand.id, []))
    go_on.set()
    granting.result()
    assert recovering.result() == 1
    assert history.states(task_id) == "queued executing queued"
    assert_index_agrees()


def test_a_claim_leaves_no_trace_in_the_settings_of_the_connection(engine):
    """Its commits need not wait for the disk; those of the project on the same connection do."""
    put()
    take(engine.worker())
    with connection.cursor() as cursor:
        cursor.execute("SHOW synchronous_commit")
        assert cursor.fetchone()[0] == "on"


def test_an_answered_claim_lets_notifications_pass_again(engine, hand):
    breaker.trip()
    assert take_ids(hand) == []
    assert not breaker.is_open


# -- a worker that dies between index and row --------------------------------------------------------


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
        marking = held_up(lambda: claim_service.withdraw_last(get_index(), hand.id))
    assert marking.result() == 0
    assert engine.check().leases == {task_id}
