"""claim: the index proposes, and the rows decide."""

import threading
import uuid
from datetime import UTC, datetime

import pytest
from django.db import DatabaseError

from queue_app.core.priorities import Band
from queue_app.core.states import Status
from queue_app.exceptions import IndexNotReady
from queue_app.models import PriorityPolicy, Task
from queue_app.services.control.queues import set_queue_limits
from queue_app.services.lifecycle.actions import cancel, run_now
from queue_app.services.lifecycle.claim import give_back
from queue_app.services.lifecycle.finish import finish
from queue_app.sql import claim as claim_rows, snapshot
from tests.support.engine import (
    Side,
    assert_index_agrees,
    at_once,
    done,
    failed,
    index_away,
    put,
    put_many,
    reconcile_later,
    row,
    status,
    take,
    take_ids,
)
from tests.support.index_state import client_of
from tests.support.leases import release
from tests.support.rows import erase

pytestmark = pytest.mark.both_ways

LONG_AGO = datetime(2026, 1, 1, tzinfo=UTC)


def test_refused_tasks_do_not_hide_the_tasks_behind_them(engine):
    """For example, a push arrives after its tasks have ended. One call of claim gets past all of them."""
    ended, waiting = put_many(7), put()
    Task.objects.filter(pk__in=ended).update(status="cancelled", finished_at=datetime.now(UTC))
    assert take_ids(engine.worker(), 2) == [waiting]
    assert assert_index_agrees().waiting == set()


def test_a_claim_grants_the_rows_to_the_worker(engine, history):
    task_id = put("a", args=[1], parameters={"x": "ü"}, user="ann", capabilities=["g"], max_retries=1, retry_delay=2)
    hand = engine.worker(offers=["g"])
    [task] = take(hand, 5)
    stored = row(task_id)
    assert (task.id, task.attempt, task.task_type, task.queue, task.priority) == (task_id, 1, "a", "default", 2)
    assert (task.capabilities, task.user, task.max_retries, task.retry_delay) == (("g",), "ann", 1, 2.0)
    assert (task.args, task.parameters) == ("[1]", '{"x": "ü"}')
    assert (stored.status, stored.attempt, stored.worker_id) == ("executing", 1, hand.id)
    assert stored.started_at == task.started_at
    assert (stored.deadline - stored.started_at).total_seconds() == pytest.approx(task.timeout, abs=0.01)
    assert history.states(task_id) == "queued executing"
    assert_index_agrees()


def test_the_tasks_options_come_before_the_policy_of_its_band(engine):
    PriorityPolicy.objects.filter(priority=2).update(timeout_seconds=77, max_retries=9)
    put()
    put(timeout=5, max_retries=0)
    PriorityPolicy.objects.filter(priority=4).delete()
    put(priority="background")
    tasks = take(engine.worker(), 3)
    assert [(task.timeout, task.max_retries) for task in tasks] == [(77, 9), (5, 0), (600, 3)]


def test_the_timeout_grows_with_each_failure_but_not_when_a_task_is_given_back(engine):
    task_id = put(timeout=10, max_retries=5)
    for seconds in (10, 15, 22.5):
        [task] = take(engine.worker())
        give_back([task])
        [task] = take(engine.worker())
        assert task.timeout == seconds
        finish([failed(task)])
        run_now(task_id)


def test_granted_tasks_come_in_the_order_of_the_index(engine):
    first = put_many(20)
    urgent = put(priority="critical")
    assert take_ids(engine.worker(), 30) == [urgent, *first]


# -- fences ---------------------------------------------------------------------------------


def test_two_claims_of_one_row_grant_it_once(engine, history):
    [task_id] = put_many(1)
    number = snapshot.generation()
    grants = at_once([lambda: claim_rows.claim([task_id], uuid.uuid4(), number, 1) for _ in range(6)])
    assert sum(map(len, grants)) == 1
    assert history.states(task_id) == "queued executing"


def test_claimers_at_once_share_the_tasks_without_overlap(engine, history):
    ids = put_many(60)
    hands = [engine.worker() for _ in range(6)]

    def drain(hand):
        taken = []
        while batch := take_ids(hand, 3):
            taken += batch
        return taken

    taken = at_once([lambda h=hand: drain(h) for hand in hands])
    assert sorted(task_id for batch in taken for task_id in batch) == sorted(ids)
    assert all(history.states(task_id) == "queued executing" for task_id in ids)
    assert_index_agrees()


def test_a_cap_holds_among_claimers_at_once(engine, history):
    """As PostgreSQL sees it: never more rows executing than the cap allows."""
    set_queue_limits("default", max_concurrent=3)
    put_many(40)
    hands = [engine.worker() for _ in range(4)]
    all_have_claimed = threading.Barrier(len(hands), timeout=60)
    at_first = []

    def work(hand):
        batch = take(hand, 2)
        at_first.extend(batch)
        all_have_claimed.wait()  # or each could finish before the next one claims, and the cap would not be reached
        for _ in range(30):
            if batch:
                finish([done(task) for task in batch])
            batch = take(hand, 2)
        finish([done(task) for task in batch])

    at_once([lambda h=hand: work(h) for hand in hands])
    assert len(at_first) == 3
    assert history.most_executing() == 3
    assert_index_agrees()


@pytest.mark.both_ways(False)
@pytest.mark.parametrize("fate", ["cancelled", "completed", "gone"])
def test_a_row_that_is_no_longer_queued_is_refused_and_its_lease_ends(engine, hand, fate):
    task_id, other = put_many(2)
    with index_away("remove"):  # the index does not hear of it
        if fate == "cancelled":
            cancel(task_id)
        elif fate == "completed":
            Task.objects.filter(pk=task_id).update(
                status="executing", attempt=1, worker_id=hand.id, started_at=LONG_AGO, deadline=LONG_AGO
            )
            Task.objects.filter(pk=task_id).update(status="completed", finished_at=LONG_AGO)
        else:
            erase(Task.objects.filter(pk=task_id))
    assert take_ids(hand, 5) == [other]
    assert engine.check().leases == {other}
    assert engine.check().waiting == set()


@pytest.mark.both_ways(False)
def test_the_lease_of_a_row_that_another_worker_runs_stays(engine):
    """Its lease was lost and a copy of the task proposed again: the new lease counts for the running task."""
    task_id = put()
    [task] = take(engine.worker())
    release(engine.index, [(task_id, "default")])
    engine.index.push([task.ref])
    assert take(engine.worker(), 5) == []
    assert_index_agrees()


@pytest.mark.both_ways(False)
def test_a_proposal_of_an_earlier_generation_is_refused_and_goes_back(engine, hand):
    ids = put_many(3)
    snapshot.raise_generation()  # another process has begun a rebuild; the index does not know yet
    with pytest.raises(IndexNotReady):
        take(hand, 2)
    assert {status(task_id) for task_id in ids} == {Status.QUEUED}
    assert engine.check().waiting == set(ids)
    assert engine.check().leases == set()


@pytest.mark.both_ways(False)
def test_a_grant_that_is_late_changes_nothing(engine, history, monkeypatch):
    """The worker was stopped between index and rows; meanwhile another worker was given its slot."""
    set_queue_limits("default", max_concurrent=1)
    slow, other = engine.worker(), engine.worker()
    first = put()
    there, go_on = threading.Event(), threading.Event()
    grant = claim_rows.claim

    def grant_late(ids, worker_id, *rest):
        if worker_id == slow.id and not there.is_set():
            there.set()
            assert go_on.wait(60)
        return grant(ids, worker_id, *rest)

    monkeypatch.setattr(claim_rows, "claim", grant_late)
    late = Side(lambda: take(slow))
    assert there.wait(60)
    reconcile_later()
    urgent = put(priority=Band.CRITICAL)
    assert take_ids(other) == [urgent]
    go_on.set()
    assert late.result() == []
    assert history.most_executing() == 1
    assert status(first) is Status.QUEUED
    assert_index_agrees()


@pytest.mark.both_ways(False)
def test_a_late_grant_changes_nothing_although_its_lease_lost_the_stamp_and_the_clock_went_back(engine):
    hour_ahead = engine.index.now() + 3_600_000_000
    client_of(engine.index).hset(engine.index.keys.generation, "stamp", hour_ahead)  # the clock was set back since
    slow = engine.worker()
    first = put()
    proposal = engine.index.claim(slow.profile, slow.id, 1)
    assert proposal.leased_at > hour_ahead
    client_of(engine.index).delete(engine.index.keys.queue_leases("default"))
    reconcile_later()
    assert claim_rows.claim([first], slow.id, proposal.generation, proposal.leased_at) == []
    assert take_ids(engine.worker()) == [first], "its place is free again"
    assert_index_agrees()


def test_the_history_of_tests_refuses_a_second_grant(engine):
    put()
    take(engine.worker())
    with pytest.raises(DatabaseError, match="attempt 1 -> 2"):
        Task.objects.update(attempt=2)
