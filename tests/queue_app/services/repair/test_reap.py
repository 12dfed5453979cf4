"""reap: tasks of dead workers go back to their places."""

import uuid
from collections.abc import Callable
from datetime import timedelta
from types import SimpleNamespace

import pytest
from django.db import InternalError, connection
from django.db.models import F

from queue_app import signals
from queue_app.core.records import WorkerReport
from queue_app.models import Task, Worker
from queue_app.services.control.queues import set_queue_limits
from queue_app.services.lifecycle.actions import cancel
from queue_app.services.lifecycle.finish import finish
from queue_app.services.repair import reap as module
from queue_app.services.repair.reap import Reaper, reap, reap_overdue
from queue_app.services.repair.reconcile import Reconciler
from queue_app.services.worker.registration import deregister
from queue_app.sql.workers import heartbeat
from tests.support.engine import (
    assert_index_agrees,
    at_once,
    done,
    enlist,
    index_away,
    put_many,
    row,
    silent,
    status,
    take,
    take_ids,
)
from tests.support.scene import Hand

pytestmark = pytest.mark.both_ways


def stop(hand: Hand) -> dict[uuid.UUID, str]:
    deregister(hand.id, hand.profile, tasks_done=0)
    return {}


def forget(hand: Hand) -> dict[uuid.UUID, str]:
    Worker.objects.filter(pk=hand.id).delete()
    return {}


@pytest.mark.parametrize("fate", [silent, stop, forget])
def test_the_tasks_of_a_worker_that_is_gone_are_queued_again(engine, history, fate):
    ids = put_many(3)
    hand, other = enlist(engine.worker()), enlist(engine.worker())
    [task] = take(hand)
    assert reap(fate(hand)) == 1
    assert history.states(task.id) == "queued executing queued"
    assert (row(task.id).attempt, row(task.id).failures) == (1, 0)
    assert_index_agrees()
    assert take_ids(other, 3) == ids, "in its old place"
    assert row(task.id).attempt == 2
    assert reap() == 0


def test_a_silent_worker_is_declared_dead_once(engine, hear):
    hand = enlist(engine.worker())
    heard = hear(signals.worker_reaped, "worker_id")
    found = silent(hand)
    reap(found)
    reap(found)
    assert heard == [hand.id]
    assert Worker.objects.get().status == "dead"
    assert not heartbeat(hand.id, WorkerReport()).alive
    assert Worker.objects.get().status == "dead", "a late heartbeat does not revive it"
    assert hand.profile.id not in engine.check().profiles


@pytest.fixture
def wait(monkeypatch):
    """Let the monotonic clock of the scheduler go on by some seconds."""
    clock = [1000.0]
    # Of this module alone: clients of Redis measure their patience by the same clock.
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: clock[0]))

    def wait(seconds: float) -> None:
        clock[0] += seconds

    return wait


def looks(reaper: Reaper, wait: Callable[[float], None], seconds: int) -> int:
    """Let the scheduler look every second; return how many attempts it ended."""
    ended = 0
    for _ in range(seconds):
        wait(1)
        ended += reaper.run_once()
    return ended


def beat(*hands: Hand) -> None:
    """Let workers send a heartbeat."""
    for hand in hands:
        assert heartbeat(hand.id, WorkerReport()).alive


def dead() -> list[uuid.UUID]:
    """Return the workers that were declared dead."""
    return list(Worker.objects.filter(status="dead").values_list("id", flat=True))


@pytest.mark.both_ways(False)
def test_silence_counts_only_while_the_scheduler_could_see_heartbeats(engine, wait):
    """After an outage of PostgreSQL for a minute, all workers were silent and all are alive."""
    put_many(1)
    hand, mute = enlist(engine.worker()), enlist(engine.worker())
    take(hand)
    reaper = Reaper()
    for away in (5, 60):  # the start, which knows of nothing; an outage
        wait(away)
        assert looks(reaper, wait, 10) == 0
        beat(hand, mute)
    assert looks(reaper, wait, 9) == 0
    for _ in range(2):
        beat(hand)
        looks(reaper, wait, 10)
    assert dead() == []
    looks(reaper, wait, 3)
    assert dead() == [mute.id], "31 s after its last heartbeat"
    assert len(engine.check().leases) == 1


def test_silence_does_not_count_while_the_database_is_read_only(engine, wait):
    """A failover may lead to a standby at first, on which no worker can send a heartbeat."""
    put_many(1)
    hand, mute = enlist(engine.worker()), enlist(engine.worker())
    take(hand)
    reaper = Reaper()
    looks(reaper, wait, 5)
    with connection.cursor() as cursor:
        cursor.execute("SET default_transaction_read_only = on")
        for _ in range(40):
            with pytest.raises(InternalError):
                looks(reaper, wait, 1)
        cursor.execute("SET default_transaction_read_only = off")
    looks(reaper, wait, 5)
    assert dead() == []
    for _ in range(3):
        beat(hand)
        looks(reaper, wait, 10)
    assert dead() == [mute.id]


@pytest.mark.parametrize("step", [1, -1], ids=["ahead", "back"])
def test_a_step_of_the_rows_clock_makes_no_worker_dead_and_hides_no_death(engine, wait, step):
    put_many(1)
    hand, mute = enlist(engine.worker()), enlist(engine.worker())
    take(mute)
    reaper = Reaper()
    looks(reaper, wait, 5)
    # The stored instants move against the clock.
    Worker.objects.update(last_heartbeat_at=F("last_heartbeat_at") - step * timedelta(hours=1))
    assert looks(reaper, wait, 5) == 0
    for _ in range(2):
        beat(hand)
        looks(reaper, wait, 10)
    assert dead() == []
    beat(hand)
    assert looks(reaper, wait, 10) == 1
    assert dead() == [mute.id]


@pytest.mark.both_ways(False)
@pytest.mark.parametrize("draining", [False, True])
def test_a_worker_within_its_budget_keeps_its_tasks(engine, wait, draining):
    put_many(1)
    hand = enlist(engine.worker())
    take(hand)
    assert heartbeat(hand.id, WorkerReport(draining, tasks_done=1)).alive
    assert looks(Reaper(), wait, 30) == 0
    assert engine.check().leases


def test_a_worker_that_was_heard_again_lives(engine):
    """Its heartbeat arrives between the look and the statement."""
    hand = enlist(engine.worker())
    found = silent(hand)
    beat(hand)
    reap(found)
    assert dead() == []


@pytest.mark.parametrize("overdue", [True, False])
def test_a_step_of_the_rows_clock_ends_no_attempt(engine, overdue):
    """An hour ahead, every running task is past its deadline by PostgreSQL's clock; the index's clock disagrees."""
    [task_id] = put_many(1)
    take(enlist(engine.worker()))
    hour = timedelta(hours=1)
    Task.objects.update(started_at=F("started_at") - hour, deadline=F("deadline") - hour)
    if overdue:
        Task.objects.update(leased_at=F("leased_at") - 3_600_000_000)
    assert reap_overdue() == overdue
    assert (status(task_id) == "executing") is not overdue


def test_after_a_freeze_of_all_workers_have_time_to_move_their_deadlines(engine, wait):
    put_many(1)
    hand = enlist(engine.worker())
    take(hand)
    reaper = Reaper()
    looks(reaper, wait, 5)
    hour = timedelta(hours=1)
    Task.objects.update(deadline=F("deadline") - hour, leased_at=F("leased_at") - 3_600_000_000)
    wait(150)
    for _ in range(2):
        beat(hand)
        looks(reaper, wait, 5)
        assert reaper.fail_overdue() == 0
    looks(reaper, wait, 1)
    assert reaper.fail_overdue() == 1


def test_a_task_that_was_to_be_cancelled_is_cancelled(engine, history):
    put_many(2)
    hand = enlist(engine.worker())
    cancelled, requeued = take(hand, 2)
    cancel(cancelled.id)
    assert reap(silent(hand)) == 2
    assert history.states(cancelled.id) == "queued executing cancelled"
    assert history.states(requeued.id) == "queued executing queued"
    assert_index_agrees()


@pytest.mark.both_ways(False)
def test_a_free_slot_is_announced(engine):
    set_queue_limits("default", max_concurrent=1)
    put_many(2)
    hand, other = enlist(engine.worker()), enlist(engine.worker())
    take(hand)
    assert take(other) == []
    reap(silent(hand))
    assert engine.called(other)


@pytest.mark.parametrize("script", ["release", "push", "unregister"])
def test_lost_notifications_of_the_index_are_repaired(engine, script, monkeypatch):
    put_many(2)
    hand = enlist(engine.worker())
    take(hand)
    with index_away(script):
        assert reap(silent(hand)) == 1
    Reconciler().run_once()
    assert_index_agrees()


def test_two_reapers_at_once(engine, history):
    ids = put_many(20)
    hand = enlist(engine.worker())
    take(hand, 20)
    found = silent(hand)
    assert sum(at_once([lambda: reap(found)] * 4)) == 20
    assert all(history.states(task_id) == "queued executing queued" for task_id in ids)
    reap()
    assert_index_agrees()


def test_a_task_that_ends_while_it_is_reaped_ends_once(engine, history):
    put_many(30)
    hand = enlist(engine.worker())
    tasks = take(hand, 30)
    found = silent(hand)
    at_once([lambda: reap(found), lambda: [finish([done(task)]) for task in tasks]])
    reap()
    assert {history.states(task.id) for task in tasks} <= {"queued executing completed", "queued executing queued"}
    assert Task.objects.filter(status="executing").count() == 0
    assert_index_agrees()
