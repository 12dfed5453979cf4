"""finish: how attempts ended, fenced by the attempt, in batches."""

import json
import uuid
from dataclasses import replace
from datetime import timedelta

import pytest

from queue_app import signals
from queue_app.core.records import MAX_MESSAGE, MAX_TRACEBACK, Outcome, TaskFailure
from queue_app.core.redaction import Secrets
from queue_app.core.states import Status
from queue_app.models import DeadLetter, Task, TaskAttempt, TaskResult
from queue_app.services.control.queues import set_queue_limits
from queue_app.services.lifecycle.actions import cancel
from queue_app.services.lifecycle.claim import give_back
from queue_app.services.lifecycle.finish import finish, masked
from queue_app.services.repair.rebuild import rebuild
from queue_app.services.repair.reconcile import Reconciler
from queue_app.services.upkeep.promote import make_due
from queue_app.sql.database import clock
from tests.support.engine import assert_index_agrees, done, failed, flush, index_away, put, put_many, row, status, take

pytestmark = pytest.mark.both_ways


def test_a_completed_task_keeps_its_result(engine, hand, history):
    put()
    [task] = take(hand)
    assert finish([done(task, '{"n": [1, null]}')]) == {task.id}
    stored = row(task.id)
    assert (stored.status, stored.attempt, stored.failures, stored.deadline) == ("completed", 1, 0, None)
    assert stored.finished_at is not None
    assert TaskResult.objects.get(pk=task.id).value == {"n": [1, None]}
    assert history.states(task.id) == "queued executing completed"
    assert_index_agrees()


def test_null_is_no_row(engine, hand):
    put_many(3)
    tasks = take(hand, 3)
    assert len(finish([done(tasks[0]), done(tasks[1], "0"), done(tasks[2], None)])) == 3
    assert set(TaskResult.objects.values_list("pk", flat=True)) == {tasks[1].id}


def assert_retried_after(seconds: float, outcome: Outcome) -> None:
    """Finish an attempt, and assert that its retry is due ``seconds`` after that moment."""
    before = clock()
    assert finish([outcome]) == {outcome.task.id}
    assert before <= row(outcome.task.id).run_after - timedelta(seconds=seconds) <= clock()


def test_a_failure_is_tried_again_later(engine, hand, history):
    put(max_retries=2, retry_delay=30)
    [task] = take(hand)
    assert_retried_after(30, failed(task, "first"))
    stored = row(task.id)
    assert (stored.status, stored.failures, stored.queued_at, stored.finished_at) == ("scheduled", 1, None, None)
    attempt = TaskAttempt.objects.get(task_id=task.id)
    assert (attempt.attempt, attempt.worker_id, attempt.message) == (1, hand.id, "first")
    assert attempt.exception_class == "builtins.ValueError"
    assert_index_agrees()


@pytest.mark.parametrize("before", range(MAX_MESSAGE - 12, MAX_MESSAGE + 1, 3))
def test_a_secret_at_the_limit_is_masked_before_the_text_is_cut(before):
    """A part of a secret would not be recognised."""
    failure = TaskFailure(f"{'c' * 250}swordfish", f"{'m' * before}swordfish", f"swordfish{'t' * (MAX_TRACEBACK - 4)}")
    stored = masked(failure, Secrets(["swordfish"]))
    assert "sw" not in stored.exception_class + stored.message
    assert "ish" not in stored.traceback
    assert (len(stored.exception_class), len(stored.traceback)) == (255, MAX_TRACEBACK)


def test_messages_of_failures_are_stored_without_secrets(engine, hand):
    put(parameters={"password": "swordfish"}, max_retries=1)
    put(parameters={"password": "swordfish"}, max_retries=0)
    tasks = take(hand, 2)
    said = "refused swordfish, token=abc at redis://me:pw@host"
    finish([failed(task, said) for task in tasks])
    stored = {*TaskAttempt.objects.values_list("message", flat=True), DeadLetter.objects.get().message}
    assert stored == {"refused ********, token=******** at redis://me:********@host"}


# failures so far, own delay, cap in settings -> seconds
@pytest.mark.parametrize(
    ("failures", "own", "seconds"),
    [(0, None, 20), (1, None, 40), (4, None, 320), (0, 3, 3), (2, 3, 12), (0, 86_400, 86_400)],
)
def test_backoff_doubles_and_the_tasks_own_delay_is_never_cut(engine, hand, failures, own, seconds):
    task_id = put(max_retries=50, retry_delay=own)
    Task.objects.filter(pk=task_id).update(failures=0)
    [task] = take(hand)
    assert_retried_after(seconds, failed(replace(task, failures=failures)))


def test_exhausted_retries_end_in_the_dead_letters_once(engine, hand, history):
    task_id = put(max_retries=1, retry_delay=0.001, user="ann", queue="q", priority="high")
    [task] = take(hand)
    finish([failed(task, "first")])
    Task.objects.filter(pk=task_id).update(run_after="2026-01-01T00:00Z")
    assert make_due() == 1
    [task] = take(hand)
    assert finish([failed(task, "last")]) == {task_id}
    assert finish([failed(task, "last")]) == set()
    stored = row(task_id)
    assert (stored.status, stored.failures, stored.attempt) == ("dead_letter", 2, 2)
    letter = DeadLetter.objects.get()
    assert (letter.task_id, letter.queue, letter.user, letter.priority) == (task_id, "q", "ann", 1)
    assert (letter.attempts, letter.message, letter.reason) == (2, "last", "retries_exhausted")
    assert (letter.expires_at - letter.died_at).days == 30
    assert history.states(task_id) == "queued executing scheduled queued executing dead_letter"
    assert TaskAttempt.objects.count() == 2
    assert_index_agrees()


@pytest.mark.parametrize("retries", [0, 5])
def test_a_failure_that_must_not_be_retried_is_final(engine, hand, history, retries):
    put(max_retries=retries)
    [task] = take(hand)
    finish([failed(task, retriable=False)])
    assert history.states(task.id) == "queued executing failed"
    assert DeadLetter.objects.count() == 0
    assert TaskAttempt.objects.count() == 1
    assert_index_agrees()


def test_a_batch_with_every_outcome(engine, hand):
    put("a", max_retries=0)
    put_many(4, max_retries=3)
    dead, completed, again, final, stale = take(hand, 5)
    give_back([stale])
    held = finish(
        [failed(dead), done(completed, "1"), failed(again), failed(final, retriable=False), done(stale, '"never"')]
    )
    assert held == {dead.id, completed.id, again.id, final.id}
    assert {task.id: status(task.id) for task in (dead, completed, again, final, stale)} == {
        dead.id: "dead_letter",
        completed.id: "completed",
        again.id: "scheduled",
        final.id: "failed",
        stale.id: "queued",
    }
    assert not TaskResult.objects.filter(pk=stale.id).exists()
    assert_index_agrees()


# -- the fence ---------------------------------------------------------------------------------


@pytest.fixture
def twice(engine, hand):
    """A stale attempt, and the attempt that holds the task now."""
    set_queue_limits("default", max_concurrent=1)
    put(max_retries=0)
    [stale] = take(hand)
    give_back([stale])
    [current] = take(hand)
    return stale, current


@pytest.mark.both_ways(False)
@pytest.mark.parametrize("outcome", [done, failed, lambda task: done(task, "1")])
def test_a_stale_attempt_changes_nothing_and_frees_no_slot(engine, twice, outcome):
    stale, current = twice
    before = Task.objects.filter(pk=current.id).values().get()
    assert finish([outcome(stale)]) == set()
    assert Task.objects.filter(pk=current.id).values().get() == before
    assert TaskResult.objects.count() == TaskAttempt.objects.count() == DeadLetter.objects.count() == 0
    assert engine.check().leases == {current.id}
    assert finish([done(current)]) == {current.id}


@pytest.mark.both_ways(False)
@pytest.mark.parametrize("outcome", [done, lambda task: done(task, "1"), failed])
def test_an_attempt_that_was_granted_again_to_another_worker_is_refused(engine, hand, outcome):
    """A claim does not wait for the disk: PostgreSQL crashed, and granted the same attempt number again."""
    put()
    [task] = take(hand)
    forgotten = replace(task, worker_id=uuid.uuid4())
    assert finish([outcome(forgotten)]) == set()
    assert give_back([forgotten]) == set()
    assert engine.check().leases == {task.id}
    assert finish([done(task)]) == {task.id}


@pytest.mark.parametrize("first", [0, 1])
@pytest.mark.parametrize("outcome", [lambda task: done(task, str(task.attempt)), failed])
def test_a_stale_attempt_in_one_batch_with_the_current_one(engine, twice, outcome, first):
    """A worker lost a task, got it again, and both threads ended at once."""
    batch = [twice[first], twice[1 - first]]
    assert finish([outcome(task) for task in batch]) == {twice[0].id}
    assert list(TaskResult.objects.values_list("value", flat=True)) in ([], [2])
    assert list(TaskAttempt.objects.values_list("attempt", flat=True)) in ([], [2])
    assert_index_agrees()


@pytest.mark.parametrize("outcome", [lambda task: done(task, "1"), failed])
def test_one_outcome_twice_in_a_batch_counts_once(engine, hand, outcome, hear):
    put(max_retries=0)
    [task] = take(hand)
    heard = hear(signals.attempt_failed, "status")
    assert finish([outcome(task), outcome(task)]) == {task.id}
    assert len(heard) == row(task.id).failures == (outcome is failed)


def test_the_first_of_two_different_outcomes_counts(engine, hand):
    put()
    [task] = take(hand)
    finish([failed(task, retriable=False), done(task, "1")])
    assert status(task.id) is Status.FAILED


# -- cancellation ----------------------------------------------------------------------------------


@pytest.mark.parametrize("retriable", [True, False])
@pytest.mark.parametrize("retries", [0, 3])
def test_a_task_with_a_requested_cancellation_is_not_retried(engine, hand, history, retries, retriable, hear):
    put(max_retries=retries)
    [task] = take(hand)
    cancel(task.id)
    heard = hear(signals.attempt_failed, "status")
    assert finish([failed(task, "interrupted", retriable=retriable)]) == {task.id}
    assert heard == [Status.CANCELLED]
    assert history.states(task.id) == "queued executing cancelled"
    assert DeadLetter.objects.count() == 0
    assert TaskAttempt.objects.get().message == "interrupted"
    assert_index_agrees()


@pytest.mark.parametrize("result", [None, "1"])
def test_a_task_that_completed_despite_a_requested_cancellation_is_cancelled(engine, hand, result):
    """The caller of cancel got the answer that the task stops, so the result is not stored."""
    put()
    [task] = take(hand)
    cancel(task.id)
    finish([done(task, result)])
    assert status(task.id) is Status.CANCELLED
    assert TaskResult.objects.count() == 0
    assert_index_agrees()


# -- crash points -----------------------------------------------------------------------------------


@pytest.mark.both_ways(False)
@pytest.mark.parametrize("outcome", [done, failed, lambda task: failed(task, retriable=False)])
def test_a_slot_whose_release_was_lost_is_freed_by_the_reconciler(engine, hand, outcome):
    set_queue_limits("default", max_concurrent=1)
    put_many(2)
    [task] = take(hand)
    with index_away("release"):
        assert finish([outcome(task)]) == {task.id}
    assert engine.check().leases == {task.id}
    assert take(hand) == []
    assert Reconciler().run_once()["leases_ended"] == 1
    assert_index_agrees()
    assert len(take(hand)) == 1


def test_a_failing_batch_records_nothing(engine, hand):
    """The worker still has all outcomes and tries again."""
    put_many(2)
    good, bad = take(hand, 2)
    with pytest.raises(Exception, match="json"):
        finish([failed(good), done(bad, "{not json")])
    assert {status(good.id), status(bad.id)} == {Status.EXECUTING}
    assert TaskAttempt.objects.count() == 0
    assert finish([failed(good), done(bad, json.dumps({}))]) == {good.id, bad.id}
    assert_index_agrees()


@pytest.mark.both_ways(False)
def test_a_restored_lease_is_released_when_its_attempt_ends(engine, hand):
    put()
    [task] = take(hand)
    flush(engine)
    rebuild()
    assert engine.check().leases == {task.id}
    finish([done(task)])
    assert engine.check().leases == set()
