"""Exceptions with which task code ends its attempt, and how a worker enforces timeouts and cancellation."""

import time
import uuid
from datetime import timedelta

import pytest
from django.utils import timezone

from queue_app.exceptions import Discard, IndexUnavailable, Retry, Snooze, TaskCancelled, TaskTimeout
from queue_app.index import get_index
from queue_app.models import DeadLetter, Task
from queue_app.registry import type_of
from queue_app.services.lifecycle.actions import cancel
from queue_app.services.upkeep.promote import make_due
from queue_app.sql import workers as worker_rows
from queue_app.workers.context import record_interruption
from queue_app.workers.deadlines import REPLACE_SECONDS
from queue_app.workers.lifecycle import Exit
from queue_app.workers.outcomes import failed
from tests.support.engine import REFUSALS, assert_index_agrees, index_refusing, put, row
from tests.workers import chores


def run(hire, kind, **options):
    task_id = put(type_of(chores.control), args=[kind], **options)
    worker = hire()
    worker.until_empty()
    assert_index_agrees()
    return row(task_id)


@pytest.mark.parametrize(
    ("kind", "options", "status", "failures", "ahead"),
    [
        ("retry", {}, "scheduled", 1, 7),
        ("retry_by_backoff", {"retry_delay": 60}, "scheduled", 1, 60),
        ("retry", {"max_retries": 0}, "dead_letter", 1, None),
        ("discard", {}, "failed", 1, None),
        ("snooze", {"max_retries": 0}, "scheduled", 0, 30),  # it spends no attempt
    ],
)
def test_an_exception_of_the_task_says_what_becomes_of_it(hire, kind, options, status, failures, ahead):
    task = run(hire, kind, **options)
    assert (task.status, task.failures) == (status, failures)
    if ahead is not None:
        assert ahead <= (task.run_after - task.created_at).total_seconds() < ahead + 5
    assert [letter.reason for letter in DeadLetter.objects.all()] == ["retries_exhausted"] * (status == "dead_letter")


@pytest.mark.parametrize("make", [lambda v: Retry(after=v), Snooze])
@pytest.mark.parametrize("value", [-1, float("nan"), float("inf"), 10**12])
def test_invalid_times_are_refused_where_they_are_raised(make, value):
    with pytest.raises(ValueError, match="must lie between"):
        make(value)


def test_a_discard_is_an_ordinary_exception_and_an_interruption_is_not():
    assert issubclass(Discard, Exception)
    assert not issubclass(TaskTimeout, Exception)


@pytest.fixture
def interrupted():
    """The attempts that the worker asked its pool to interrupt."""
    return []


def watch(worker, asked):
    worker.pool.interrupt = lambda held, kind: asked.append((held.task.id, kind)) or True
    worker.pool.abandon = lambda held, error: None


def test_a_task_past_its_timeout_is_interrupted(hire, interrupted):
    task_id = put(type_of(chores.quick), timeout=60)
    worker = hire()
    watch(worker, interrupted)
    worker.run_once()
    worker.run_once()
    assert interrupted == []
    assert 30 < worker.pause <= 60, "the loop wakes up for it"
    worker.stuck(61)
    worker.run_once()
    assert interrupted == [(task_id, TaskTimeout)]


def test_time_in_which_a_worker_was_frozen_does_not_count(hire, interrupted):
    task_id = put(type_of(chores.quick), timeout=60)
    worker = hire()
    watch(worker, interrupted)
    worker.run_once()
    deadline = row(task_id).deadline
    worker.stuck(150)
    frozen = [145.0]
    worker.guard.take_frozen = lambda: frozen.pop() if frozen else 0.0
    worker.run_once()
    worker.run_once()
    assert interrupted == []
    assert row(task_id).deadline - deadline == timedelta(seconds=145), "the reaper waits, too"
    worker.stuck(60)
    worker.run_once()
    assert interrupted == [(task_id, TaskTimeout)]


def test_a_worker_whose_task_does_not_end_keeps_the_task_and_is_replaced(hire, interrupted, caplog):
    """The slot comes back with another process, and only then may the task run again."""
    task_id = put(type_of(chores.quick), timeout=10)
    worker = hire()
    worker.pool.interrupt = record_interruption
    worker.pool.abandon = lambda held, error: worker.pool.begun.remove(held) or failed(held, time.monotonic(), error)
    worker.pool.give_up = lambda held: interrupted.append(held.task.id)
    worker.run_once()
    deadline = row(task_id).deadline
    worker.stuck(16)
    for _ in range(3):
        worker.run_once()
    assert interrupted == [task_id]
    assert row(task_id).status == "executing"
    assert row(task_id).deadline - deadline == timedelta(seconds=REPLACE_SECONDS + worker.options.grace_seconds)
    assert not worker.is_finished
    [held] = worker.pool.begun
    held.stuck_at -= REPLACE_SECONDS
    other = put(type_of(chores.quick))
    worker.run_once()
    worker.turn()
    assert worker.is_finished, "it does not wait for the end of the task"
    assert worker.leave() is Exit.REPLACE
    assert (row(task_id).status, row(task_id).failures, row(task_id).crashes) == ("scheduled", 1, 0)
    assert row(other).status == "queued"
    assert_index_agrees()


def test_each_retry_may_take_longer(hire):
    put(type_of(chores.control), args=["retry_by_backoff"], timeout=10)
    worker = hire()
    timeouts = []
    for _ in range(3):
        worker.turn()
        timeouts += [held.task.timeout for held in worker.pool.begun]
        worker.end()
        Task.objects.update(run_after=timezone.now())
        make_due()
    assert timeouts == pytest.approx([10, 15, 22.5])


def test_a_cancelled_task_is_interrupted_when_the_worker_is_notified(hire, interrupted):
    kept, cancelled = put(type_of(chores.quick)), put(type_of(chores.quick))
    worker = hire()
    watch(worker, interrupted)
    worker.run_once()
    get_index().wait_for_call(worker.id, 0.01)
    cancel(cancelled)
    assert get_index().wait_for_call(worker.id, 5)
    worker.called()
    worker.run_once()
    assert interrupted == [(cancelled, TaskCancelled)]
    worker.end()
    assert row(cancelled).status == "cancelled"
    assert row(kept).status == "completed"
    assert_index_agrees()


def test_a_heartbeat_finds_a_cancellation_without_a_call(hire, interrupted):
    cancelled = put(type_of(chores.quick))
    worker = hire()
    watch(worker, interrupted)
    worker.run_once()
    cancel(cancelled)
    worker.beat()
    worker.run_once()
    assert interrupted == [(cancelled, TaskCancelled)]


def test_a_worker_ignores_cancel_requests_of_other_workers(hire):
    assert worker_rows.cancel_requests(uuid.uuid4()) == set()


@pytest.mark.parametrize("cause", REFUSALS)
def test_a_worker_that_waits_finds_out_that_redis_refuses_writes(engine, cause):
    """To call a worker, Redis must write."""
    hand = engine.worker()
    with index_refusing(cause), pytest.raises(IndexUnavailable):
        get_index().wait_for_call(hand.id, 60)
