"""reap: crashes are counted, a task that kills workers is isolated, stuck workers lose overdue tasks."""

import subprocess
from dataclasses import replace
from datetime import timedelta

import pytest
from django.utils import timezone

from queue_app.core.process import process_identity
from queue_app.core.steps import Step, StepKind
from queue_app.models import DeadLetter, Task, TaskAttempt, Worker
from queue_app.services.enqueue.store import enqueue_many
from queue_app.services.lifecycle.finish import finish
from queue_app.services.lifecycle.steps import record_step
from queue_app.services.repair.reap import mark_dead, mark_dead_locally, reap, reap_overdue
from queue_app.services.upkeep.promote import make_due
from tests.support.engine import assert_index_agrees, done, enlist, failed, new, put_many, row, status, take

pytestmark = pytest.mark.django_db(transaction=True)


def make_all_due():
    Task.objects.filter(status="scheduled").update(run_after=timezone.now())
    make_due()


def test_a_task_that_kills_its_worker_three_times_is_dead_lettered(engine, history):
    [poison] = put_many(1)
    for _ in range(3):
        make_all_due()
        hand = enlist(engine.worker())
        [task] = take(hand)
        mark_dead(hand.id)
        assert finish([done(task)]) == set(), "the dead worker's result is refused"
    assert history.states(poison) == ("queued executing queued executing scheduled queued executing dead_letter")
    assert (row(poison).crashes, row(poison).failures, row(poison).attempt) == (3, 0, 3)
    letter = DeadLetter.objects.get()
    assert (letter.reason, letter.attempts) == ("crash_loop", 3)
    assert letter.exception_class == "queue_app.exceptions.WorkerDied"
    assert list(TaskAttempt.objects.order_by("attempt").values_list("attempt", flat=True)) == [1, 2, 3]
    assert_index_agrees()


def test_a_death_after_a_stored_step_does_not_count(engine):
    [slow] = put_many(1)
    for number, is_progress in enumerate([False, True, False, True, False, False, True, False, False, False]):
        make_all_due()
        hand = enlist(engine.worker())
        [task] = take(hand)
        if is_progress:
            record_step(task, Step(number, f"step {number}", StepKind.STEP, "1", None, "", True))
        mark_dead(hand.id)
        crashes = row(slow).crashes
        assert crashes == (0 if is_progress else crashes)
    assert (row(slow).status, row(slow).attempt, crashes) == ("dead_letter", 10, 3), "three deaths without progress"


def test_a_step_of_an_attempt_that_slept_after_it_resets_the_count_too(engine):
    """Deaths before the first step of an attempt are not in a row if an attempt between them got further."""
    [slow] = put_many(1)
    for number in range(6):
        make_all_due()
        hand = enlist(engine.worker())
        [task] = take(hand)
        if number % 2:
            record_step(task, Step(number, f"step {number}", StepKind.STEP, "1", None, "", True))
            finish([replace(done(task), snooze=1.0)])
        else:
            mark_dead(hand.id)
    assert (row(slow).status, row(slow).crashes) == ("scheduled", 0)


def test_a_timeout_lengthens_the_next_attempt_and_the_death_of_a_worker_does_not(engine):
    [task_id] = [stored.id for stored in enqueue_many([new(timeout=10, max_retries=5)])]
    timeouts = []
    for end in ("timeout", "death", "timeout", "timeout"):
        make_all_due()
        hand = enlist(engine.worker())
        [task] = take(hand)
        timeouts.append(task.timeout)
        if end == "death":
            mark_dead(hand.id)
            assert TaskAttempt.objects.get(attempt=task.attempt).exception_class == "queue_app.exceptions.WorkerDied"
        else:
            outcome = failed(task)
            finish([replace(outcome, failure=replace(outcome.failure, reason="timeout"))])
    assert timeouts == [10, 15, 15, 22.5]
    assert (row(task_id).failures, row(task_id).crashes) == (3, 1)


def test_from_the_second_crash_on_the_tasks_of_a_worker_are_requeued_one_by_one(engine):
    put_many(3)
    hand = enlist(engine.worker())
    take(hand, 3)
    mark_dead(hand.id)
    assert set(Task.objects.values_list("status", flat=True)) == {"queued"}, "the first time at once, in place"
    hand = enlist(engine.worker())
    take(hand, 3)
    mark_dead(hand.id)
    times = sorted(Task.objects.filter(status="scheduled").values_list("run_after", flat=True))
    assert [round((later - times[0]).total_seconds()) for later in times] == [0, 2, 4]
    assert_index_agrees()


def test_a_worker_of_this_machine_without_a_process_is_marked_dead_at_once(engine):
    child = subprocess.Popen(["tail", "-f", "/dev/null"])
    [task_id] = put_many(1)
    hand = enlist(engine.worker(), process=process_identity(child.pid), pid=child.pid)
    take(hand)
    assert mark_dead_locally() == 0
    child.kill()
    child.wait()
    assert reap() == 1
    assert status(task_id) == "queued"
    assert Worker.objects.get(pk=hand.id).status == "dead"


def test_a_worker_of_another_machine_is_left_to_its_heartbeat(engine):
    hand = enlist(engine.worker(), process="another-boot:pid:[1]:1:1")
    put_many(1)
    take(hand)
    assert mark_dead_locally() == 0
    assert reap() == 0


def test_a_task_long_past_its_deadline_is_taken_from_a_worker_that_is_stuck(engine, history):
    [task_id] = put_many(1)
    hand = enlist(engine.worker())
    [task] = take(hand)
    assert reap_overdue() == 0
    Task.objects.update(deadline=timezone.now() - timedelta(seconds=11))
    assert reap_overdue() == 1
    assert history.states(task_id) == "queued executing scheduled"
    assert row(task_id).failures == 1
    assert TaskAttempt.objects.get().exception_class == "queue_app.exceptions.TaskTimeout"
    assert finish([done(task)]) == set()
    assert_index_agrees()
    assert reap_overdue() == 0
