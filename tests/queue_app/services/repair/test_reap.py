"""reap: tasks of dead workers go back to their places."""

import uuid
from datetime import timedelta

import pytest
from django.utils import timezone

from queue_app import signals
from queue_app.models import Task, Worker
from queue_app.services.control.queues import set_queue_limits
from queue_app.services.lifecycle.actions import cancel
from queue_app.services.lifecycle.finish import finish
from queue_app.services.repair import reap as module
from queue_app.services.repair.reap import Reaper, reap
from queue_app.services.repair.reconcile import Reconciler
from queue_app.services.repair.workers import WorkerIdentity, deregister, heartbeat, register
from tests.support.engine import assert_index_agrees, at_once, done, index_away, put_many, row, status, take, take_ids
from tests.support.scene import Hand


def enlist(scene, kinds: str = "a") -> Hand:
    """Register a worker in rows and index."""
    hand = scene.worker(kinds)
    identity = WorkerIdentity(id=hand.id, name="w", host="h", pid=1, process_identity="p", version="1")
    register(identity, hand.profile, concurrency=2, heartbeat_seconds=10)
    return hand


def silence(hand: Hand, seconds: float) -> None:
    """Move the last heartbeat of a worker this far into the past."""
    Worker.objects.filter(pk=hand.id).update(last_heartbeat_at=timezone.now() - timedelta(seconds=seconds))


def make_silent(hand: Hand) -> None:
    silence(hand, 31)


def stop(hand: Hand) -> None:
    deregister(hand.id, hand.profile, tasks_done=0)


def forget(hand: Hand) -> None:
    Worker.objects.filter(pk=hand.id).delete()


@pytest.mark.parametrize("fate", [make_silent, stop, forget])
def test_the_tasks_of_a_worker_that_is_gone_are_queued_again(engine, history, fate):
    ids = put_many(3)
    hand, other = enlist(engine), enlist(engine)
    [task] = take(hand)
    fate(hand)
    assert reap() == 1
    assert history.states(task.id) == "queued executing queued"
    assert (row(task.id).attempt, row(task.id).failures) == (1, 0)
    assert_index_agrees()
    assert take_ids(other, 3) == ids, "in its old place"
    assert row(task.id).attempt == 2
    assert reap() == 0


def test_a_silent_worker_is_declared_dead_once(engine):
    hand = enlist(engine)
    silence(hand, 31)
    heard = []
    signals.worker_reaped.connect(listener := lambda **event: heard.append(event["worker_id"]))
    reap()
    reap()
    signals.worker_reaped.disconnect(listener)
    assert heard == [hand.id]
    assert Worker.objects.get().status == "dead"
    assert heartbeat(hand.id, draining=False, tasks_done=0) is False
    assert Worker.objects.get().status == "dead", "a late heartbeat does not revive it"
    assert hand.profile.id not in engine.check().profiles


def test_silence_counts_only_while_the_scheduler_could_see_heartbeats(engine, monkeypatch):
    """After an outage of PostgreSQL for a minute, all workers were silent and all are alive."""
    clock = [1000.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: clock[0])
    put_many(1)
    hand, dead = enlist(engine), enlist(engine)
    take(hand)
    reaper = Reaper()
    for away in (5, 60):  # the start, which knows of nothing; an outage
        clock[0] += away
        silence(hand, 60)
        silence(dead, 60)
        assert reaper.run_once() == 0
        clock[0] += 9
        assert heartbeat(hand.id, draining=False, tasks_done=0)
        assert heartbeat(dead.id, draining=False, tasks_done=0)
        reaper.run_once()
    silence(dead, 60)
    clock[0] += 7
    assert reaper.run_once() == 0
    assert list(Worker.objects.filter(status="dead").values_list("id", flat=True)) == [dead.id]
    assert len(engine.check().leases) == 1


@pytest.mark.parametrize("draining", [False, True])
def test_a_worker_within_its_budget_keeps_its_tasks(engine, draining):
    put_many(1)
    hand = enlist(engine)
    take(hand)
    assert heartbeat(hand.id, draining=draining, tasks_done=1)
    silence(hand, 29)
    assert reap() == 0
    assert engine.check().leases


def test_the_late_outcome_of_a_reaped_worker_is_refused(engine):
    set_queue_limits("default", max_concurrent=1)
    put_many(1)
    hand, other = enlist(engine), enlist(engine)
    [stale] = take(hand)
    silence(hand, 31)
    reap()
    [current] = take(other)
    assert finish([done(stale, "1")]) == set()
    assert engine.check().leases == {current.id}
    assert finish([done(current)]) == {current.id}


def test_a_task_that_was_to_be_cancelled_is_cancelled(engine, history):
    put_many(2)
    hand = enlist(engine)
    cancelled, requeued = take(hand, 2)
    cancel(cancelled.id)
    silence(hand, 31)
    assert reap() == 2
    assert history.states(cancelled.id) == "queued executing cancelled"
    assert history.states(requeued.id) == "queued executing queued"
    assert_index_agrees()


def test_a_free_slot_is_announced(engine):
    set_queue_limits("default", max_concurrent=1)
    put_many(2)
    hand, other = enlist(engine), enlist(engine)
    take(hand)
    assert take(other) == []
    silence(hand, 31)
    reap()
    assert engine.called(other)


@pytest.mark.parametrize("script", ["release", "push", "unregister"])
def test_lost_notifications_of_the_index_are_repaired(engine, script, monkeypatch):
    put_many(2)
    hand = enlist(engine)
    take(hand)
    silence(hand, 31)
    with index_away(script):
        assert reap() == 1
    Reconciler().run_once()
    assert_index_agrees()


def test_two_reapers_at_once(engine, history):
    ids = put_many(20)
    hand = enlist(engine)
    take(hand, 20)
    silence(hand, 31)
    assert sum(at_once([reap] * 4)) == 20
    assert all(history.states(task_id) == "queued executing queued" for task_id in ids)
    reap()
    assert_index_agrees()


def test_a_task_that_ends_while_it_is_reaped_ends_once(engine, history):
    put_many(30)
    hand = enlist(engine)
    tasks = take(hand, 30)
    silence(hand, 31)
    at_once([reap, lambda: [finish([done(task)]) for task in tasks]])
    reap()
    assert {history.states(task.id) for task in tasks} <= {"queued executing completed", "queued executing queued"}
    assert Task.objects.filter(status="executing").count() == 0
    assert_index_agrees()


def test_a_task_of_an_unknown_worker_is_requeued(engine):
    """As after a restore of the rows from a backup."""
    [task_id] = put_many(1)
    take(enlist(engine))
    Task.objects.update(worker_id=uuid.uuid4())
    assert reap() == 1
    assert status(task_id) == "queued"
