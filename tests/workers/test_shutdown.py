"""How a worker exits: drained, at once, or declared dead."""

import threading

import pytest

from queue_app.core.states import Status
from queue_app.index import get_index
from queue_app.models import Worker as WorkerRow
from queue_app.services.lifecycle.actions import cancel
from queue_app.services.repair.reap import mark_dead
from queue_app.services.repair.rebuild import rebuild_lock
from queue_app.services.worker import registration as service
from queue_app.workers.lifecycle import Exit
from tests.support.engine import assert_index_agrees, index_away, put, put_many, redis_client, row, status
from tests.workers.stage import ECHO, QUICK, away, statuses, teach


def test_a_drain_claims_nothing_and_gives_back_what_has_not_started(hire):
    ids = put_many(6, QUICK)
    worker = hire(concurrency=1)
    teach(worker, QUICK, 0.005)
    worker.run_once()
    assert statuses(*ids) == ["executing"] * 5 + ["queued"]
    worker.stop()
    worker.run_once()
    assert statuses(*ids) == ["executing"] + ["queued"] * 5
    assert not worker.is_finished
    worker.end()
    assert worker.is_finished
    assert statuses(*ids) == ["completed"] + ["queued"] * 5
    assert_index_agrees()


def test_a_draining_worker_passes_calls_on(hire):
    leaving, idle = hire(concurrency=1), hire(concurrency=1)
    put(QUICK)
    leaving.claimer.should_claim = False
    leaving.stop()
    leaving.called()
    idle.run_once()
    idle.end()
    put(QUICK)
    get_index().wait_for_call(idle.id, 0.01)  # lose it
    redis_client().zadd(f"{get_index().keys.prefix}:idle:{idle.profile.id}", {str(idle.id): 1})
    leaving.run_once()
    assert get_index().wait_for_call(idle.id, 5)


def test_the_loop_sleeps_no_longer_than_the_drain_may_take(hire):
    worker = hire(grace_seconds=60)
    put(QUICK)
    worker.run_once()
    assert worker.pause > 60, "until the task's own timeout"
    worker.stop()
    worker.run_once()
    assert 0 < worker.pause <= 60


@pytest.mark.parametrize(
    ("grace", "said", "ends"),
    [
        (0, ["stop"], True),
        (60, ["stop"], False),
        (60, ["stop", "stop"], True),
        (60, ["drain", "drain"], False),  # a supervised worker
        (60, ["drain", "hurry"], True),
    ],
)
def test_a_worker_that_runs_a_task_ends_after_its_grace_or_in_a_hurry(hire, grace, said, ends):
    worker = hire(grace_seconds=grace)
    put(QUICK)
    worker.run_once()
    for order in said:
        getattr(worker, order)()
    worker.run_once()
    assert worker.is_finished is ends


def test_leaving_reports_what_ended_and_gives_back_what_runs(hire):
    ids = put_many(4, QUICK)
    worker = hire(concurrency=2)
    teach(worker, QUICK, 0.02)
    worker.run_once()
    worker.pool.finish(1)
    assert worker.leave() is Exit.GAVE_BACK
    assert statuses(*ids) == ["completed"] + ["queued"] * 3
    assert [row(task_id).attempt for task_id in ids] == [1, 1, 1, 1]
    assert [row(task_id).failures for task_id in ids] == [0] * 4
    assert WorkerRow.objects.get(pk=worker.id).status == "stopped"
    assert worker.pool.stopped
    assert_index_agrees()


def test_leaving_without_tasks(hire):
    worker = hire()
    assert worker.leave() is Exit.OK
    assert WorkerRow.objects.get(pk=worker.id).status == "stopped"
    assert redis_client().smembers(get_index().keys.profiles) == set()


def test_an_attempt_that_was_given_back_is_refused_later(hire, warnings_logged):
    put(ECHO, args=[1])
    worker, other = hire(), hire()
    worker.run_once()
    [held] = worker.pool.begun
    worker.leave()
    other.run_once()
    worker.in_flight.record(worker.pool._executor.run(held))
    worker.in_flight.report()
    assert status(held.task.id) == Status.EXECUTING
    assert "came too late and was refused" in warnings_logged()[-1]
    other.end()
    assert row(held.task.id).worker_id == other.id
    assert row(held.task.id).attempt == 2


def test_each_step_of_the_exit_runs_even_if_another_fails(hire, monkeypatch, warnings_logged):
    ids = put_many(2, QUICK)
    worker = hire(concurrency=2)
    worker.run_once()
    worker.pool.finish(1)
    monkeypatch.setattr(worker.transport, "finish", away)
    assert worker.leave() is Exit.CRASHED
    assert statuses(*ids) == ["executing", "queued"]
    assert WorkerRow.objects.get(pk=worker.id).status == "stopped"
    assert warnings_logged() == ["worker still cannot report: gone"]


def test_leaving_without_the_index(hire):
    ids = put_many(2, QUICK)
    worker = hire(concurrency=2)
    worker.run_once()
    with index_away():
        assert worker.leave() is Exit.GAVE_BACK
    assert statuses(*ids) == ["queued"] * 2
    assert WorkerRow.objects.get(pk=worker.id).status == "stopped"


def test_cancelled_while_it_waited_in_the_worker(hire):
    ids = put_many(2, QUICK)
    worker = hire(concurrency=1)
    teach(worker, QUICK)
    worker.run_once()
    cancel(ids[1])
    worker.stop()
    worker.run_once()
    assert statuses(*ids) == ["executing", "cancelled"]
    assert_index_agrees()


def test_declared_dead(hire, warnings_logged):
    ids = put_many(2, QUICK)
    worker, heir = hire(concurrency=2), hire(concurrency=2)
    worker.run_once()
    worker.pool.finish(1)
    mark_dead(worker.id)
    assert not worker.heartbeat.run_once()
    heir.run_once()
    worker.run_once()
    assert worker.is_finished
    assert worker.leave() is Exit.LOST
    assert statuses(*ids) == ["executing"] * 2
    assert {row(task_id).worker_id for task_id in ids} == {heir.id}
    assert any("refused" in line for line in warnings_logged())
    assert WorkerRow.objects.get(pk=worker.id).status == "dead"


def test_staff_may_ask_a_worker_to_drain(hire):
    worker = hire()
    assert worker.beat()
    assert not worker.shutdown.draining
    service.request_drain(worker.id, by="alice")
    assert worker.beat()
    assert worker.shutdown.draining


def test_a_drain_is_reported_at_once_and_once(hire, monkeypatch):
    """The row of the worker says draining within a second, not with the next heartbeat in ten."""
    worker, hurried = hire(), []
    monkeypatch.setattr(worker.heartbeat, "hurry", lambda: hurried.append(1))
    worker._report_drain()
    assert hurried == []
    worker.drain()
    worker._report_drain()
    worker._report_drain()
    assert hurried == [1]


def test_a_request_of_staff_hurries_the_heartbeat(hire, monkeypatch):
    worker = hire()
    worker.run_once()
    hurried = threading.Event()
    monkeypatch.setattr(worker.wake_listener, "_on_notification", hurried.set)
    worker.wake_listener.start()
    service.request_drain(worker.id, by="alice")
    assert hurried.wait(60)
    worker.wake_listener.stop()
    service.deregister(worker.id, worker.profile, tasks_done=0)


def test_a_worker_that_exits_lets_another_process_rebuild_the_index(hire):
    """A supervised worker ends without the functions of ``atexit``."""
    worker, index = hire(), get_index()
    with rebuild_lock(index):
        assert not index.lock("rebuild", "another process", 9)
        worker.leave()
        assert index.lock("rebuild", "another process", 9)
