"""PostgreSQL forgets claims whose commits did not reach the disk, while their tasks run."""

import pytest
from django.db import transaction

from queue_app.core.states import Status
from queue_app.index import get_index
from queue_app.models import Limit, Task, Worker as WorkerRow
from queue_app.services.lifecycle.actions import cancel
from queue_app.services.repair import rebuild as rebuilds
from queue_app.services.repair.reconcile import Reconciler
from queue_app.sql.claim import unanswered
from tests.support.crashes import begin_run, forget_claims
from tests.support.engine import Side, assert_index_agrees, flush, put, row, status
from tests.workers.stage import ECHO, SLOW


@pytest.fixture
def running(hire):
    """A worker that runs a task under a key that allows one at a time; another task of the key waits."""
    Limit.objects.create(scope="key", name="k", max_concurrent=1)
    rebuilds.copy_limits()
    ids = [put(ECHO, args=[7], concurrency_key="k") for _ in range(2)]
    worker = hire(concurrency=2)
    worker.run_once()
    assert [status(task_id) for task_id in ids] == [Status.EXECUTING, Status.QUEUED]
    return worker, ids


def answer(worker) -> None:
    """Send the two heartbeats with which a worker answers in a new run of PostgreSQL, and turn its loop."""
    assert worker.answer(), "the first one asks for another"
    worker.run_once()


def reconcile(turns: int = 3) -> None:
    reconciler = Reconciler(grace=0.0)
    for _ in range(turns):
        reconciler.run_once()


@pytest.mark.parametrize("debug", [False, True])
def test_the_worker_keeps_its_task_and_nobody_else_starts_it(running, hire, settings, debug):
    """Under ``DEBUG``, each statement is sent by itself."""
    settings.DEBUG = debug
    worker, (first, second) = running
    granted = row(first)
    forget_claims()
    reconcile()  # it must not abandon the lease before the worker has answered
    other = hire(name="other")
    other.run_once()
    assert [len(each.in_flight) for each in (worker, other)] == [1, 0]
    answer(worker)
    again = row(first)
    assert (again.status, again.attempt, again.worker_id) == ("executing", 1, worker.id)
    assert again.leased_at == granted.leased_at
    reconcile()
    assert_index_agrees()
    worker.end()
    assert [status(task_id) for task_id in (first, second)] == [Status.COMPLETED, Status.EXECUTING]


def test_so_it_is_if_postgresql_has_also_forgotten_that_the_task_was_due(running):
    worker, (first, _) = running
    granted = row(first)
    forget_claims()
    Task.objects.filter(pk=first).update(status="scheduled", queued_at=None, run_after=granted.created_at)
    answer(worker)
    again = row(first)
    assert (again.status, again.attempt, again.leased_at) == ("executing", 1, granted.leased_at)
    reconcile()
    assert_index_agrees()


def test_a_result_that_comes_before_the_heartbeat_counts(running):
    worker, (first, _) = running
    forget_claims()
    worker.end()
    assert status(first) is Status.COMPLETED
    assert row(first).attempt == 1
    assert_index_agrees()


def test_a_task_that_ended_otherwise_is_interrupted_and_its_outcome_dropped(running, warnings_logged):
    worker, (first, second) = running
    forget_claims()
    cancel(first)
    answer(worker)
    worker.run_once()
    assert [status(task_id) for task_id in (first, second)] == [Status.CANCELLED, Status.QUEUED]
    assert len(worker.in_flight) == 0
    assert f"the outcome of {first} attempt 1 came too late and was refused" in warnings_logged()
    reconcile()
    worker.turn()
    assert status(second) is Status.EXECUTING


def test_an_outcome_ends_only_the_grant_that_it_belongs_to(running, warnings_logged):
    """The worker was cut off for so long that it got the same task under the same number again."""
    worker, (first, _) = running
    lost = row(first)
    forget_claims()
    WorkerRow.objects.update(answered_run=None)  # nobody waits for its answer
    reconcile()
    worker.turn()
    again = row(first)
    assert (again.attempt, again.worker_id) == (lost.attempt, lost.worker_id)
    assert again.leased_at > lost.leased_at
    assert len(worker.in_flight) == 2
    worker.end(1)
    assert f"the outcome of {first} attempt 1 came too late and was refused" in warnings_logged()
    assert status(first) is Status.EXECUTING, "the first run's report ended the second grant"
    worker.end()
    assert status(first) is Status.COMPLETED


def test_a_claim_that_failed_gives_up_no_lease_of_a_running_task(running):
    worker, (first, _) = running
    forget_claims()
    worker.doubt()
    worker.run_once()
    assert [lease.id for lease in get_index().leases("default")] == [first]


def test_a_dead_worker_gets_nothing_back(running):
    worker, (first, _) = running
    forget_claims()
    WorkerRow.objects.update(status="dead")
    worker.heartbeat.run_once()
    assert worker.shutdown.lost
    assert status(first) is Status.QUEUED
    reconcile()
    assert_index_agrees()  # it has no lease any more


@pytest.mark.parametrize("when", ["after the claim", "before the task is held"])
def test_a_claim_whose_worker_met_another_postgresql_meanwhile_is_confirmed(hire, before, after, when):
    """The worker must hold the task before it looks whether it has met another PostgreSQL meanwhile."""
    task_id = put(SLOW)
    worker = hire()

    def crash():
        forget_claims()
        Task.objects.update(status="cancelled", finished_at="2026-01-01T00:00Z")
        worker.heartbeat.run_once()  # it does not name the new task

    if when == "after the claim":
        after(worker.transport, "claim", crash)
    else:
        before(worker.in_flight, "add", crash)
    worker.run_once()
    assert (len(worker.in_flight), worker.pool.begun) == (0, [])
    assert status(task_id) is Status.CANCELLED


def test_a_claim_that_cannot_be_confirmed_goes_back(hire, before):
    task_id = put(SLOW)
    worker = hire()
    before(worker.in_flight, "add", lambda: begin_run() or worker.heartbeat.run_once())
    with worker.without("compare"):
        worker.run_once()
    assert worker.pool.begun == []
    for _ in range(2):  # it gives the task back, and claims it again
        worker.wake()
        worker.later(60)
        worker.run_once()
    assert [held.task.id for held in worker.pool.begun] == [task_id]
    assert [(row(task_id).attempt, len(worker.in_flight))] == [(2, 1)]


def test_extensions_are_not_forgotten(hire):
    """Their commits do not wait for the disk. The reaper goes by the row's deadline."""
    task_id = put(SLOW, timeout=60)
    worker = hire()
    worker.run_once()
    (held,) = worker.pool.begun
    held.extended += 3600
    forget_claims()
    answer(worker)
    task = row(task_id)
    assert task.status == "executing"
    assert (task.deadline - task.started_at).total_seconds() >= 3660
    answered = row(task_id).deadline
    worker.heartbeat.run_once()
    worker.run_once()
    assert row(task_id).deadline == answered


def test_a_rebuild_waits_for_the_answers_of_living_workers(running, engine, monkeypatch):
    worker, (first, second) = running
    forget_claims()
    flush()
    looks, plain = [], rebuilds.await_answers

    def pause(seconds):
        looks.append(seconds)
        worker.heartbeat.run_once()

    monkeypatch.setattr(rebuilds, "await_answers", lambda end_step: plain(end_step, pause))
    assert rebuilds.rebuild() is not None
    assert len(looks) == 2
    assert [status(task_id) for task_id in (first, second)] == [Status.EXECUTING, Status.QUEUED]
    assert_index_agrees()


def test_a_rebuild_does_not_open_if_postgresql_crashed_meanwhile(running, engine, hire, before):
    """A pooler may hide it from this session."""
    worker, (first, second) = running
    flush()
    before(rebuilds.snapshot, "raise_generation", forget_claims)
    assert rebuilds.rebuild() is None
    assert get_index().generation().state == "rebuilding", "it opened without the lease of the first task"
    answer(worker)
    assert rebuilds.rebuild() is not None
    other = hire(name="other")
    other.run_once()
    assert len(other.in_flight) == 0
    assert [status(task_id) for task_id in (first, second)] == [Status.EXECUTING, Status.QUEUED]
    assert_index_agrees()


def test_a_rebuild_declares_a_worker_dead_that_does_not_answer(hire):
    worker = hire(heartbeat_seconds=0.0)
    begin_run()
    assert [each[0] for each in unanswered()] == [worker.id]
    rebuilds.await_answers(pause=lambda _: None)
    assert WorkerRow.objects.get().status == "dead"


def test_a_freeze_during_a_rebuild_declares_no_worker_dead(hire, clock):
    worker = hire()
    begin_run()
    frozen = [1000.0]

    def pause(_seconds):
        if frozen:
            clock.now += frozen.pop()
        else:
            worker.heartbeat.run_once()

    rebuilds.await_answers(pause=pause)
    assert WorkerRow.objects.get().status == "active"


def test_a_locked_row_delays_no_heartbeat(running):
    worker, (first, _) = running
    forget_claims()
    with transaction.atomic():
        Task.objects.select_for_update().get(pk=first)
        Side(worker.heartbeat.run_once).result()
        assert status(first) is Status.QUEUED
        assert unanswered(), "it asks again with the next heartbeat"
    answer(worker)
    assert status(first) is Status.EXECUTING
    assert not unanswered()
