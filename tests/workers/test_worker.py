"""The worker's loop, step by step; the test decides when a task in a slot ends."""

from contextlib import contextmanager, suppress
from datetime import UTC, datetime

import pytest

from queue_app.core.priorities import Band
from queue_app.core.states import Status
from queue_app.exceptions import IndexUnavailable
from queue_app.index import get_index
from queue_app.models import Queue, Task, TaskResult, Worker as WorkerRow
from queue_app.services.notify.index import breaker
from queue_app.services.repair import rebuild as load
from queue_app.services.repair.rebuild import rebuild
from queue_app.services.repair.reconcile import reconcile_everything
from queue_app.workers import claimer
from queue_app.workers.lifecycle import Exit
from queue_app.workers.options import WorkerOptions
from queue_app.workers.transport.base import DirectTransport
from queue_app.workers.worker import Worker
from tests.support.engine import assert_index_agrees, flush, put, put_many, redis_client, row, status
from tests.workers.stage import ECHO, QUICK, RAISES, SLOW, away, statuses, teach, tick


def test_postgresql_away_at_the_start(engine, monkeypatch, warnings_logged):
    transport = DirectTransport()
    monkeypatch.setattr(transport, "register", away)
    assert Worker(WorkerOptions(name="early"), transport).run() is Exit.UNREACHABLE
    assert warnings_logged() == ["worker early cannot register: gone"]


def test_a_slow_clock_of_the_host_does_not_make_a_worker_dead(hire, monkeypatch):
    monkeypatch.setattr("django.utils.timezone.now", lambda: datetime(2020, 1, 1, tzinfo=UTC))
    worker = hire()
    monkeypatch.undo()
    assert WorkerRow.objects.get(pk=worker.id).last_heartbeat_at.year > 2020


# -- claim and report ------------------------------------------------------------------------------------


def test_it_claims_for_free_slots_and_reports(hire, history):
    ids = put_many(3, ECHO, args=[7])
    worker = hire(concurrency=2)
    worker.run_once()
    assert statuses(*ids) == ["executing", "executing", "queued"]
    worker.end()
    assert statuses(*ids) == ["completed", "completed", "executing"]
    worker.end()
    assert statuses(*ids) == ["completed"] * 3
    assert [TaskResult.objects.get(task_id=task_id).value for task_id in ids] == [7, 7, 7]
    assert worker.in_flight.done == 3
    assert history.most_executing() == 2
    assert_index_agrees()


def test_urgent_tasks_come_first(hire, history):
    low, first, second = put(QUICK, priority=Band.LOW), put(QUICK), put(SLOW)
    urgent = put(SLOW, priority=Band.CRITICAL)
    hire(concurrency=1, look_ahead_ms=0).until_empty()
    assert history.starts() == [urgent, first, second, low]


def test_outcomes_are_written_in_one_batch(hire, monkeypatch):
    put_many(30, QUICK)
    worker = hire(concurrency=30)
    batches = []
    plain = worker.transport.finish
    monkeypatch.setattr(worker.transport, "finish", lambda batch: batches.append(len(batch)) or plain(batch))
    worker.run_once()
    worker.end()
    assert batches == [30]


# -- a bounded life --------------------------------------------------------------------------------------


def test_max_tasks_is_exact(hire):
    ids = put_many(10, QUICK)
    worker = hire(concurrency=3, max_tasks=4)
    teach(worker, QUICK)
    while not worker.is_finished:
        worker.turn()
        worker.pool.finish()
    assert statuses(*ids) == ["completed"] * 4 + ["queued"] * 6


def test_tasks_given_back_do_not_count(hire):
    put_many(2, QUICK)
    slow = put_many(8, SLOW)
    worker = hire(concurrency=1, max_tasks=5)
    teach(worker, QUICK)
    worker.run_once()
    assert worker.in_flight.claimed == 2
    while not worker.is_finished:
        worker.run_once()
        worker.pool.finish()
    assert statuses(*slow) == ["completed"] * 3 + ["queued"] * 5


def test_a_burst_runs_due_tasks(hire):
    task_id = put(RAISES, args=["value"], retry_delay=0.001, max_retries=3)
    worker = hire(burst=True)
    for _ in range(500):
        worker.run_once()
        worker.pool.finish()
        if worker.is_finished and status(task_id) == Status.DEAD_LETTER:
            break
        worker.wake()
    assert row(task_id).failures == 4


def test_a_burst_waits_for_the_index(hire, index):
    put_many(3, QUICK)
    worker = hire(burst=True)
    flush()
    worker.run_once()
    assert not worker.is_finished
    while not worker.is_finished:
        worker.run_once()
        worker.pool.finish()
    assert Task.objects.filter(status="completed").count() == 3


def test_a_burst_waits_for_the_tasks_that_a_rebuild_still_loads(hire, index, monkeypatch):
    monkeypatch.setattr(load, "PAGE", 1)
    monkeypatch.setattr(load, "LEAST", 2)
    monkeypatch.setattr(claimer, "LOAD_SECONDS", 0.0)
    plain, worker, left = load.Loader._step, hire(burst=True), []

    def turn():
        worker.run_once()
        worker.pool.finish()
        worker.later(1)

    def step(self, parts):
        if index.generation().state == "loading":
            for _ in range(6):
                turn()
                assert not worker.is_finished
            left.append(Task.objects.filter(status="queued").count())
        return plain(self, parts)

    monkeypatch.setattr(load.Loader, "_step", step)
    put_many(7, QUICK)
    assert rebuild() is not None
    assert left == [5, 3, 1], "it did all that was loaded"
    while not worker.is_finished:
        turn()
    assert Task.objects.filter(status="completed").count() == 7


@pytest.fixture
def full_redis(index):
    """Return a block in which Redis refuses writes, because its memory is used up."""

    @contextmanager
    def full():
        redis_client().config_set("maxmemory", 1)
        try:
            yield
            with suppress(IndexUnavailable):
                index.stats()  # the reply to the last push, which nobody awaits
        finally:
            redis_client().config_set("maxmemory", 0)
            breaker.reset()

    return full


def test_a_burst_runs_tasks_that_were_enqueued_while_redis_was_full(hire, full_redis, index):
    """Without a scheduler nothing else adds them to the index."""
    worker = hire(burst=True)
    with full_redis():
        ids = put_many(3, QUICK)
    assert index.stats().queues == []
    worker.until_finished()
    assert statuses(*ids) == ["completed"] * 3


def test_a_burst_leaves_tasks_that_the_index_lacks_to_a_scheduler(hire, full_redis, make):
    worker = hire(burst=True)
    with full_redis():
        ids = put_many(3, QUICK)
    scheduler = make()
    scheduler.lead()
    worker.until_finished()
    assert statuses(*ids) == ["queued"] * 3
    tick(scheduler, "reconcile")
    hire(burst=True).until_finished()
    assert statuses(*ids) == ["completed"] * 3


def test_a_burst_with_a_scheduler_of_its_own_looks_itself(hire, full_redis, make):
    """That scheduler ends with the worker, perhaps before it has looked."""
    with full_redis():
        ids = put_many(3, QUICK)
    make().lead()
    hire(burst=True, with_scheduler=True).until_finished()
    assert statuses(*ids) == ["completed"] * 3


def test_a_burst_looks_for_lost_tasks_only_at_its_end(hire, monkeypatch):
    """Not each time that it waits for a rate: the look reads all queued rows."""
    Queue.objects.filter(name="default").update(rate_count=1, rate_seconds=3, rate_burst=1)
    reconcile_everything()
    put(QUICK)
    worker, looks = hire(burst=True), []
    monkeypatch.setattr(worker.transport, "push_missing", lambda: looks.append(1) or 0)
    worker.run_once()
    assert (worker.is_finished, looks) == (False, [])
    monkeypatch.setattr(claimer, "BURST_SECONDS", 0)
    worker.turn()
    assert (worker.is_finished, looks) == (True, [1])


def test_a_burst_goes_on_when_postgresql_is_away_at_its_end(hire, monkeypatch):
    worker = hire(burst=True)
    monkeypatch.setattr(worker.transport, "make_due", away)
    worker.run_once()
    assert not worker.is_finished
    monkeypatch.undo()
    worker.later(1)
    worker.run_once()
    assert worker.is_finished


# -- queues and capabilities -----------------------------------------------------------------------------


def test_only_its_queues(hire):
    mine, others = put(QUICK, queue="a"), put(QUICK, queue="b")
    hire(queues=("a",)).until_empty()
    assert statuses(mine, others) == ["completed", "queued"]


def test_it_claims_only_types_that_it_can_run(hire):
    plain, gpu = put(QUICK), put(QUICK, capabilities=("gpu",))
    hire().until_empty()
    assert statuses(plain, gpu) == ["completed", "queued"]
    hire(capabilities=("gpu", "big")).until_empty()
    assert statuses(plain, gpu) == ["completed", "completed"]


def test_a_pause_holds_from_the_next_claim_on(hire):
    ids = put_many(4, QUICK)
    worker = hire(concurrency=2)
    worker.run_once()
    queue = Queue.objects.get(pk="default")
    queue.paused, queue.paused_at = True, queue.created_at
    queue.save()
    worker.end()
    assert statuses(*ids) == ["completed"] * 2 + ["queued"] * 2


def test_an_idle_worker_is_notified_of_a_new_index(hire):
    """After a FLUSHALL no index knows the worker, so only a notification can wake it."""
    worker = hire()
    worker.run_once()
    get_index().wait_for_call(worker.id, 0.01)
    flush()
    task_id = put(QUICK)
    rebuild()
    assert get_index().wait_for_call(worker.id, 5)
    worker.called()
    worker.run_once()  # its profile is unknown: it registers again
    worker.run_once()
    assert [held.task.id for held in worker.pool.begun] == [task_id]
