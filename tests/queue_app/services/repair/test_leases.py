"""Only its stamp ends a lease, however late a release is; and a partly lost lease is restored."""

import threading
import uuid
from datetime import UTC, datetime
from functools import partial

import pytest

from queue_app.core.priorities import Band
from queue_app.index import Lease, Profile, get_index
from queue_app.models import DeadLetter, Limit, Queue, Task
from queue_app.services.lifecycle.actions import cancel, replay, reprioritise, retry, run_now
from queue_app.services.lifecycle.claim import give_back
from queue_app.services.lifecycle.finish import finish
from queue_app.services.repair import reap as reap_service
from queue_app.services.repair.reap import mark_dead
from queue_app.services.repair.rebuild import copy_limits, rebuild
from queue_app.services.repair.reconcile import Reconciler
from queue_app.services.upkeep.promote import make_due
from queue_app.sql import claim as claim_rows
from tests.support import index_state
from tests.support.engine import (
    Side,
    assert_index_agrees,
    done,
    enlist,
    failed,
    index_away,
    put,
    reconcile_later,
    take,
    take_ids,
)
from tests.support.index_state import client_of
from tests.support.leases import release
from tests.support.scene import Hand

PAST = datetime(2026, 1, 1, tzinfo=UTC)


def cap(most: int) -> None:
    """Limit the executing tasks of the default queue."""
    Queue.objects.update_or_create(pk="default", defaults={"max_concurrent": most})
    copy_limits()


# -- releases that are late --------------------------------------------------------------------------------


def test_the_release_of_a_dead_workers_task_does_not_free_the_slot_of_its_next_worker(engine, history, monkeypatch):
    first, second = enlist(engine.worker()), enlist(engine.worker())
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


def test_a_late_worker_does_not_free_the_slot_of_the_worker_that_has_the_task_now(engine, monkeypatch):
    """Guard: give_back names its lease. Another worker may claim the task between the row and the release."""
    queue, _ = Queue.objects.get_or_create(name="default")
    queue.max_concurrent = 1
    queue.save()
    task_id = put()
    first, second = engine.worker(), engine.worker()
    [mine] = take(first)
    plain = claim_rows.give_back

    def and_others_are_quicker(tasks):
        returned = plain(tasks)
        release(get_index(), [(mine.id, mine.queue)])  # as the reconciler does where a row is queued
        get_index().push(each.task for each in returned)
        assert take_ids(second) == [task_id]
        return returned

    monkeypatch.setattr(claim_rows, "give_back", and_others_are_quicker)
    assert give_back([mine]) == {mine.id}
    assert [lease.id for lease in get_index().leases("default")] == [task_id]
    assert_index_agrees()
    put()
    assert take_ids(second) == [], "the only slot is taken"


# -- leases that are lost in part --------------------------------------------------------------------------


def of_the_hash(index):
    client_of(index).delete(index.keys.leases)


def of_the_queue(index):
    client_of(index).delete(index.keys.queue_leases("default"))


def of_the_gate(index):
    client_of(index).delete(index.keys.held("k:customer:7"))


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
    reconcile_later()
    state = assert_index_agrees()
    assert (state.lease_lanes, state.held) == ({}, {})


# -- every way back into the queue keeps the whole lane ------------------------------------------------------


def die(hand, put) -> None:
    put(max_retries=0)
    finish([failed(task) for task in take(hand, 9)])


def be_overlooked(put) -> None:
    with index_away("push"):
        put()
    Reconciler().run_once()


WAYS = {
    "enqueued": lambda hand, put: put(),
    "due": lambda hand, put: (put(delay=3600), Task.objects.update(run_after=PAST), make_due()),
    "run early": lambda hand, put: run_now(put(delay=3600)),
    "given back": lambda hand, put: (put(), give_back(take(hand, 9))),
    "of a dead worker": lambda hand, put: (put(), take(hand, 9), mark_dead(hand.id)),
    "replayed": lambda hand, put: (die(hand, put), replay(DeadLetter.objects.get().id, by="ann")),
    "retried dead letter": lambda hand, put: (die(hand, put), retry(Task.objects.get().id, by="ann")),
    "retried": lambda hand, put: (cancel(put()), retry(Task.objects.get().id, by="ann")),
    "moved to another band": lambda hand, put: reprioritise(put(), Band.HIGH),
    "found by the reconciler": lambda hand, put: be_overlooked(put),
    "rebuilt": lambda hand, put: (put(), rebuild()),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("by_user", [False, True], ids=["shared", "by user"])
def test_every_way_into_the_index_keeps_the_whole_lane(engine, way, by_user):
    if by_user:
        Queue.objects.update_or_create(pk="default", defaults={"max_concurrent_per_user": 5})
        copy_limits()
    hand = enlist(Hand(uuid.uuid4(), Profile.of((), ("a",), ("gpu",), 9)), concurrency=9)
    WAYS[way](hand, partial(put, concurrency_key="customer:7", weight=2, user="ann", capabilities=["gpu"]))
    get_index().flush()
    assert assert_index_agrees().waiting == {Task.objects.get().id}
