"""Only its stamp ends a lease, however late a release is; and a partly lost lease is restored."""

import threading
import uuid
from datetime import UTC, datetime, timedelta

import pytest

from queue_app.core.priorities import Band
from queue_app.index import Lease, Profile, get_index
from queue_app.models import DeadLetter, Limit, Queue, Task
from queue_app.services.lifecycle.actions import cancel, reprioritise, retry, run_now
from queue_app.services.lifecycle.claim import claim, give_back, recover
from queue_app.services.lifecycle.finish import finish
from queue_app.services.lifecycle.replay import replay
from queue_app.services.repair import reap as reap_service
from queue_app.services.repair.reap import mark_dead
from queue_app.services.repair.rebuild import copy_limits, rebuild
from queue_app.services.repair.reconcile import Reconciler
from queue_app.services.upkeep.promote import make_due
from queue_app.services.worker.registration import WorkerIdentity, register
from queue_app.sql import claim as claim_rows
from tests.support import index_state
from tests.support.engine import Side, assert_index_agrees, done, failed, index_away, put, take, take_ids
from tests.support.scene import Hand

PAST = datetime(2026, 1, 1, tzinfo=UTC)


def cap(most: int) -> None:
    """Limit the executing tasks of the default queue."""
    Queue.objects.update_or_create(pk="default", defaults={"max_concurrent": most})
    copy_limits()


def enlist(engine) -> Hand:
    """Return a worker with a row."""
    hand = engine.worker()
    identity = WorkerIdentity(id=hand.id, name="w", host="h", pid=1, process_identity="elsewhere", version="")
    register(identity, hand.profile, concurrency=4, heartbeat_seconds=30)
    return hand


# -- releases that are late --------------------------------------------------------------------------------


def test_the_release_of_a_dead_workers_task_does_not_free_the_slot_of_its_next_worker(engine, history, monkeypatch):
    first, second = enlist(engine), enlist(engine)
    task_id = put()
    cap(1)
    take(first)
    reaped, go_on = threading.Event(), threading.Event()
    plain = reap_service.return_to_index

    def return_late(tasks):
        reaped.set()
        assert go_on.wait(20)
        return plain(tasks)

    monkeypatch.setattr(reap_service, "return_to_index", return_late)
    reaper = Side(lambda: mark_dead(first.id))  # as a supervisor that saw its child die
    assert reaped.wait(10)
    Reconciler().run_once()
    [again] = take(second)
    assert (again.id, again.attempt) == (task_id, 2)
    urgent = put(priority=Band.CRITICAL)
    go_on.set()
    reaper.result()
    assert take_ids(second) == [], "the only slot is taken"
    assert history.most_executing() == 1
    finish([done(again)])
    assert take_ids(second) == [urgent]


def test_a_release_from_before_two_rebuilds_frees_nothing(engine, history):
    first, second = engine.worker(), engine.worker()
    put()
    cap(1)
    [task] = take(first)
    claim_rows.give_back([task])  # and its release is under way
    rebuild()
    engine.index.register(second.profile, second.id)
    assert take_ids(second) == [task.id]
    rebuild()
    engine.index.register(second.profile, second.id)
    assert engine.index.release([Lease(task.id, "default", task.leased_at)]) == 0
    put(priority=Band.CRITICAL)
    assert take_ids(second) == []
    assert history.most_executing() == 1


def test_a_claim_without_an_answer_is_undone_at_once(engine):
    """The index leased the task, and the answer never reached the worker."""
    cap(1)
    task_id = put()
    hand, other = engine.worker(), engine.worker()
    engine.index.claim(hand.profile, hand.id, 1)
    assert take_ids(other) == []
    recover(hand.id, [])
    assert take_ids(other) == [task_id]


# -- leases that are lost in part --------------------------------------------------------------------------


def of_the_hash(index):
    index._client.delete(index.keys.leases)


def of_the_queue(index):
    index._client.delete(index.keys.queue_leases("default"))


def of_the_gate(index):
    index._client.delete(index.keys.held("k:customer:7"))


def of_all(index):
    for lose in (of_the_hash, of_the_queue, of_the_gate):
        lose(index)


@pytest.fixture
def held(engine):
    """A worker, and the task that it holds under a cap of its key and one of everything."""
    Limit.objects.create(scope="key", name="customer", max_concurrent=1)
    cap(1)
    hand = engine.worker()
    put(concurrency_key="customer:7")
    [task] = take(hand)
    return hand, task


@pytest.mark.parametrize("lose", [of_the_hash, of_the_queue, of_the_gate, of_all])
def test_a_partly_lost_lease_is_restored(engine, held, lose):
    hand, task = held
    lose(engine.index)
    assert Reconciler().run_once()["leases_restored"] == 1
    assert_index_agrees()
    put(concurrency_key="customer:7", priority=Band.CRITICAL)
    assert take(hand) == []
    finish([done(task)])
    assert len(take(hand)) == 1


@pytest.mark.parametrize("lose", [of_the_hash, of_the_queue, of_the_gate, of_all])
def test_the_remains_of_a_lease_are_removed_when_its_task_ends(engine, held, lose):
    hand, task = held
    lose(engine.index)
    finish([done(task)])
    state = index_state.read(engine.index)
    assert (state.leases, state.lease_lanes, state.held) == (set(), {}, {})
    put(concurrency_key="customer:7")
    assert len(take(hand)) == 1


@pytest.mark.parametrize("lose", [of_the_hash, of_the_queue, of_the_gate])
def test_the_remains_of_a_lease_are_removed_even_if_its_release_is_lost(engine, held, lose):
    _, task = held
    lose(engine.index)
    with index_away("release"):
        finish([done(task)])
    reconciler = Reconciler()
    for _ in range(2):
        reconciler.run_once()
    state = assert_index_agrees()
    assert (state.lease_lanes, state.held) == ({}, {})


# -- every way back into the queue keeps the whole lane ------------------------------------------------------


def after_enqueue(hand, options):
    return put(**options)


def after_its_time(hand, options):
    task_id = put(run_after=datetime.now(UTC) + timedelta(hours=1), **options)
    Task.objects.filter(pk=task_id).update(run_after=PAST)
    make_due()
    return task_id


def run_early(hand, options):
    task_id = put(run_after=datetime.now(UTC) + timedelta(hours=1), **options)
    run_now(task_id)
    return task_id


def given_back(hand, options):
    put(**options)
    [task] = claim(hand.profile, hand.id, 9)
    give_back([task])
    return task.id


def of_a_dead_worker(hand, options):
    task_id = put(**options)
    claim(hand.profile, hand.id, 9)
    mark_dead(hand.id)
    return task_id


def replayed(hand, options):
    put(max_retries=0, **options)
    [task] = claim(hand.profile, hand.id, 9)
    finish([failed(task)])
    replay(DeadLetter.objects.get().id, by="ann")
    return task.id


def retried_dead(hand, options):
    put(max_retries=0, **options)
    [task] = claim(hand.profile, hand.id, 9)
    finish([failed(task)])
    retry(task.id, by="ann")
    return task.id


def retried_cancelled(hand, options):
    task_id = put(**options)
    cancel(task_id)
    retry(task_id, by="ann")
    return task_id


def moved_to_another_band(hand, options):
    task_id = put(**options)
    reprioritise(task_id, Band.HIGH)
    return task_id


def found_by_the_reconciler(hand, options):
    with index_away("push"):
        task_id = put(**options)
    Reconciler().run_once()
    return task_id


def rebuilt(hand, options):
    task_id = put(**options)
    rebuild()
    return task_id


WAYS = [
    after_enqueue, after_its_time, run_early, given_back, of_a_dead_worker, replayed, retried_dead, retried_cancelled,
    moved_to_another_band, found_by_the_reconciler, rebuilt,
]  # fmt: skip


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
@pytest.mark.parametrize("by_user", [False, True], ids=["shared", "by user"])
def test_every_way_into_the_index_keeps_the_whole_lane(engine, way, by_user):
    if by_user:
        Queue.objects.update_or_create(pk="default", defaults={"max_concurrent_per_user": 5})
        copy_limits()
    profile = Profile.of((), ("a",), ("gpu",), 9)
    hand = Hand(uuid.uuid4(), profile)
    identity = WorkerIdentity(id=hand.id, name="w", host="h", pid=1, process_identity="elsewhere", version="")
    register(identity, profile, concurrency=9, heartbeat_seconds=30)
    options = {"concurrency_key": "customer:7", "weight": 2, "user": "ann", "capabilities": ["gpu"]}
    task_id = way(hand, options)
    get_index().flush()
    assert assert_index_agrees().waiting == {task_id}
