"""Steps: each runs once per task, whatever happens between them."""

from datetime import timedelta

import pytest
from django.db.models import F

from queue_app.core.states import Status
from queue_app.models import Queue, StepResult, Task, TaskAttempt, TaskResult
from queue_app.registry import type_of
from queue_app.services.lifecycle.actions import cancel, retry, run_again, run_now
from queue_app.services.lifecycle.claim import give_back
from queue_app.services.upkeep.promote import make_due
from queue_app.sql import steps as rows
from tests.support.engine import Side, assert_index_agrees, put, row
from tests.workers import step_tasks
from tests.workers.step_tasks import calls, during, renamed


@pytest.fixture(autouse=True)
def clean():
    yield
    for each in (calls, during, renamed):
        each.clear()


def fails_once():
    """Return a function that raises at its first call."""
    left = [1]

    def fail():
        if left and left.pop():
            raise ValueError("once")

    return fail


def wake(task_id) -> None:
    """Let the waiting task's time come, and its sleeps end."""
    StepResult.objects.filter(task_id=task_id, until__isnull=False).update(until=F("stored_at"))
    Task.objects.filter(pk=task_id).update(run_after=F("created_at"))
    make_due()


def run(worker, task_id):
    worker.until_empty()
    assert_index_agrees()
    return row(task_id)


def error(task_id) -> str:
    return TaskAttempt.objects.filter(task_id=task_id).latest("attempt").message


def test_a_later_attempt_gets_the_stored_results(hire):
    during["end"] = fails_once()
    task_id, worker = put(type_of(step_tasks.order), args=[["charge", "pack"]]), hire()
    assert run(worker, task_id).status == Status.SCHEDULED
    wake(task_id)
    assert run(worker, task_id).status == Status.COMPLETED
    assert calls == ["charge", "pack", "end", "end"]
    assert TaskResult.objects.get(pk=task_id).value == ["charge", "pack"]
    stored = list(StepResult.objects.order_by("position").values_list("position", "name", "value", "attempt"))
    assert stored == [(1, "charge", "charge", 1), (2, "pack", "pack", 1)]


def test_a_step_that_raises_stores_nothing_and_runs_again(hire):
    during["pack"] = fails_once()
    task_id, worker = put(type_of(step_tasks.order), args=[["charge", "pack"]]), hire()
    run(worker, task_id)
    wake(task_id)
    assert run(worker, task_id).status == Status.COMPLETED
    assert calls == ["charge", "pack", "pack", "end"]


@pytest.mark.parametrize("fails", [False, True])
def test_the_first_attempt_sees_results_as_later_ones_do_and_null_is_one(hire, fails):
    if fails:
        during["shapes"] = fails_once()
    task_id, worker = put(type_of(step_tasks.shapes)), hire()
    run(worker, task_id)
    wake(task_id)
    assert run(worker, task_id).status == Status.COMPLETED
    assert TaskResult.objects.get(pk=task_id).value == [[1, [2]], None]
    assert calls == ["tuple", "none"]


def test_an_atomic_step_and_its_rows_are_one_transaction(hire):
    during["pack"] = fails_once()
    task_id, worker = put(type_of(step_tasks.order), args=[["charge", "pack"]], parameters={"atomic": True}), hire()
    run(worker, task_id)
    assert list(Queue.objects.filter(name__in=["charge", "pack"]).values_list("name", flat=True)) == ["charge"]
    assert list(StepResult.objects.values_list("name", flat=True)) == ["charge"]
    wake(task_id)
    assert run(worker, task_id).status == Status.COMPLETED  # a second Queue of the same name would raise
    assert Queue.objects.filter(name__in=["charge", "pack"]).count() == 2


@pytest.mark.parametrize("atomic", [False, True])
def test_an_attempt_that_lost_its_task_stores_no_step(hire, atomic):
    task_id, worker = put(type_of(step_tasks.order), args=[["charge"]], parameters={"atomic": atomic}), hire()
    worker.turn()
    claimed = worker.pool.begun[0].task
    during["charge"] = lambda: Side(lambda: give_back([claimed])).result()
    worker.pool.finish()
    assert not StepResult.objects.exists()
    assert not Queue.objects.filter(name="charge").exists()
    assert "end" not in calls, "the attempt ends at the step"
    during.clear()
    assert run(worker, task_id).status == Status.COMPLETED
    assert Queue.objects.filter(name="charge").exists() == atomic


@pytest.mark.parametrize(
    ("before", "now", "said"),
    [
        (["charge", "pack"], ["bill", "pack"], "was 'charge' when an earlier attempt stored it; now it is 'bill'."),
        (["charge", "pack"], ["check", "charge", "pack"], "now it is 'check'."),
        (["charge", "pack"], ["charge"], "'pack' when an earlier attempt stored it; now the function ended without it"),
        (["charge", "charge"], ["charge"], "Give each step a name of its own, such as 'charge 2'."),
    ],
)  # fmt: skip
def test_a_changed_sequence_says_what_to_do(hire, before, now, said):
    during["end"] = fails_once()
    task_id, worker = put(type_of(step_tasks.order), args=[before]), hire()
    run(worker, task_id)
    if len(set(before)) == len(before):
        Task.objects.get(pk=task_id).payload.__class__.objects.filter(pk=task_id).update(args=[now])
        wake(task_id)
        assert run(worker, task_id).status == Status.SCHEDULED, "a retry by the former code may succeed"
        assert "restore the former code and replay the task" in error(task_id)
    assert said in error(task_id)


def test_a_step_that_failed_may_not_change_places_with_a_stored_one(hire):
    during["pack"] = fails_once()
    task_id, worker = put(type_of(step_tasks.order), args=[["charge", "pack"]]), hire()
    run(worker, task_id)
    renamed.update({"charge": "pack", "pack": "charge"})
    wake(task_id)
    run(worker, task_id)
    assert "Step 1 of this task was 'charge'" in error(task_id)


def test_replay_goes_on_after_the_stored_steps_and_run_again_begins_anew(hire):
    during["end"] = fails_once()
    task_id, worker = put(type_of(step_tasks.order), args=[["charge"]], max_retries=0), hire()
    assert run(worker, task_id).status == Status.DEAD_LETTER
    retry(task_id)
    assert run(worker, task_id).status == Status.COMPLETED
    assert calls.count("charge") == 1
    run(worker, run_again(task_id).id)
    assert calls.count("charge") == 2


@pytest.mark.parametrize(("child", "step"), [(False, "inside"), (True, "run plain")])
def test_a_step_in_a_transaction_is_refused(hire, child, step):
    task_id = put(type_of(step_tasks.wrapped), max_retries=0, parameters={"child": child})
    run(hire(), task_id)
    assert error(task_id).startswith(f"The step '{step}' was called inside a transaction")
    assert not Task.objects.filter(task_type=type_of(step_tasks.plain)).exists()


@pytest.mark.parametrize("kind", ["set", "nan"])
def test_a_result_that_json_cannot_hold_is_named(hire, kind):
    task_id = put(type_of(step_tasks.unstorable), args=[kind], max_retries=0)
    run(hire(), task_id)
    assert error(task_id).startswith(f"The result of the step {kind!r} cannot be stored:")


def test_a_context_without_steps_makes_no_query(hire, monkeypatch):
    def refuse(*_args):
        raise AssertionError("no step was called")

    monkeypatch.setattr(rows, "load", refuse)
    monkeypatch.setattr(rows, "record", refuse)
    during["plain"] = fails_once()
    task_id, worker = put(type_of(step_tasks.plain)), hire()
    run(worker, task_id)
    wake(task_id)
    assert run(worker, task_id).status == Status.COMPLETED


def test_a_first_attempt_reads_nothing(hire, monkeypatch):
    monkeypatch.setattr(rows, "load", None)
    task_id = put(type_of(step_tasks.order), args=[["charge"]])
    assert run(hire(), task_id).status == Status.COMPLETED


# -- sleep ---------------------------------------------------------------------------------


def test_a_sleep_ends_the_attempt_and_goes_on_after_it(hire):
    task_id, worker = put(type_of(step_tasks.naps), max_retries=0), hire()
    task = run(worker, task_id)
    assert (task.status, task.failures, task.attempt) == (Status.SCHEDULED, 0, 1)
    assert timedelta(days=3) <= task.run_after - task.created_at < timedelta(days=3, minutes=1)
    assert not TaskAttempt.objects.exists()
    wake(task_id)
    task = run(worker, task_id)
    assert (task.status, task.attempt) == (Status.SCHEDULED, 2), "the second sleep"
    wake(task_id)
    assert run(worker, task_id).status == Status.COMPLETED
    assert calls == ["before", "after"]
    names = ["before", "sleep", "sleep 2", "after"]
    assert list(StepResult.objects.order_by("position").values_list("name", flat=True)) == names


def test_a_task_that_wakes_too_early_sleeps_for_the_rest(hire):
    task_id, worker = put(type_of(step_tasks.naps)), hire()
    first = run(worker, task_id)
    Task.objects.filter(pk=task_id).update(run_after=F("created_at"))
    make_due()
    second = run(worker, task_id)
    assert (second.status, second.attempt) == (Status.SCHEDULED, 2)
    assert abs(second.run_after - first.run_after) < timedelta(seconds=1), "not three days more"


@pytest.mark.parametrize("how", ["sleep", "wait"])
def test_a_task_suspends_for_ten_years_at_most(hire, how):
    task = run(hire(), put(type_of(step_tasks.far), args=[how]))
    assert task.status == Status.COMPLETED
    assert "ten years" in calls[0]
    assert not StepResult.objects.exists()


def test_run_now_ends_a_sleep(hire):
    task_id, worker = put(type_of(step_tasks.deaf)), hire()
    run(worker, task_id)
    run_now(task_id)
    run(worker, task_id)
    run_now(task_id)
    assert run(worker, task_id).status == Status.COMPLETED


def test_code_that_catches_everything_sleeps_nevertheless(hire):
    task_id = put(type_of(step_tasks.deaf))
    assert run(hire(), task_id).status == Status.SCHEDULED
    assert calls == ["end"], "the code went on, but the attempt did not complete"
    assert StepResult.objects.count() == 1


def test_a_sleeping_task_can_be_cancelled(hire):
    task_id = put(type_of(step_tasks.naps))
    run(hire(), task_id)
    assert cancel(task_id) is Status.CANCELLED
    assert_index_agrees()


# -- coroutines ----------------------------------------------------------------------------


def test_steps_in_coroutines(hire):
    during["end"] = fails_once()
    task_id, worker = put(type_of(step_tasks.coroutine)), hire()
    run(worker, task_id)
    wake(task_id)
    assert run(worker, task_id).status == Status.COMPLETED
    assert sorted(calls) == ["end", "end", "left", "one", "right", "two"]
    assert TaskResult.objects.get(pk=task_id).value == ["one", "two", "left", "right"]


def test_a_coroutine_sleeps_until_a_time(hire):
    task_id, worker = put(type_of(step_tasks.coroutine), parameters={"nap": True}), hire()
    assert run(worker, task_id).status == Status.SCHEDULED
    wake(task_id)
    assert run(worker, task_id).status == Status.COMPLETED
    assert calls.count("one") == 1


def test_a_coroutine_step_cannot_be_atomic(hire):
    task_id = put(type_of(step_tasks.bad_atomic), max_retries=0)
    run(hire(), task_id)
    assert "Give it a plain function" in error(task_id)
