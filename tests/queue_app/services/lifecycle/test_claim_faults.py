"""A claim that meets locks, deaths, and servers that go away: every grant reaches its worker, or costs nothing."""

import threading

import pytest
from django.db import DatabaseError, connection, transaction

from queue_app.models import Task, TaskPayload
from queue_app.services.lifecycle import claim as claim_service
from queue_app.services.lifecycle.actions import cancel
from queue_app.services.notify.index import breaker
from queue_app.sql import claim as claim_rows
from queue_app.sql.database import GENERATION_LOCK, fetch_all
from tests.queue_app.services.lifecycle.test_claim import reconcile_later
from tests.support.engine import (
    Side,
    assert_index_agrees,
    index_away,
    put,
    put_many,
    row,
    somebody_waits_for_a_lock,
    take,
    take_ids,
    until,
)


def test_granted_tasks_reach_the_worker_although_another_row_cannot_be_claimed(engine):
    """A queued row that the claim cannot take (its payload is gone) must not take others along."""
    bad, good, later = put_many(3)
    TaskPayload.objects.filter(pk=bad)._raw_delete(using="default")
    hand = engine.worker()
    assert take_ids(hand, 2) == [good]
    assert take_ids(hand, 2) == [later], "and it is out of the way"
    assert engine.check().leases == {bad, good, later}
    reconcile_later()
    assert engine.check().waiting == {bad}


def test_a_locked_row_does_not_hold_up_the_others(engine, monkeypatch):
    """An open transaction cancelled it: the index proposes it until that transaction commits."""
    monkeypatch.setattr(claim_rows, "_LOCK", claim_rows._LOCK.replace("'1s'", "'10ms'"))
    ids = put_many(5)
    hand = engine.worker()
    locked, done_with_it = threading.Event(), threading.Event()

    def hold():
        with transaction.atomic():
            Task.objects.select_for_update().get(pk=ids[1])
            locked.set()
            assert done_with_it.wait(60)

    side = Side(hold)
    assert locked.wait(60)
    assert take_ids(hand, 3) == [ids[0], ids[2]]
    assert take_ids(hand, 3) == ids[3:], "and it is out of the way"
    done_with_it.set()
    side.result()
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


def test_a_claim_that_dies_before_the_rows_costs_no_attempt(engine, history, monkeypatch):
    task_id, other = put_many(2)
    hand = engine.worker()
    with monkeypatch.context() as patch:

        def die(*_):
            raise DatabaseError("the connection broke")

        patch.setattr(claim_rows, "claim", die)
        with pytest.raises(DatabaseError):
            take(hand, 1)
    assert engine.check().leases == {task_id}
    reconcile_later()
    assert_index_agrees()
    assert take_ids(hand, 5) == [task_id, other], "in its old place"
    assert row(task_id).attempt == 1


def test_a_worker_whose_connection_broke_waits_for_its_grant(engine, history):
    """The server still executes the grant behind a lock: a check before it has ended would never find the task."""
    [task_id] = put_many(1)
    hand = engine.worker()
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
    recovering = Side(lambda: claim_service.recover(hand.id, []))
    until(somebody_waits_for_a_lock, "it waits")
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


def test_an_answered_claim_lets_notifications_pass_again(engine):
    hand = engine.worker()
    breaker.trip()
    assert take_ids(hand) == []
    assert not breaker.is_open
