"""Signals: a task waits for them without a slot, and takes each of them once."""

import uuid
from datetime import timedelta

import pytest
from django.db import transaction
from django.db.models import F
from django.urls import reverse

from queue_app import Workflow, signal
from queue_app.core.states import Status
from queue_app.exceptions import InvalidTaskData, InvalidTransition, TaskNotFound
from queue_app.index import get_index
from queue_app.models import Signal, StepResult, Task, TaskAttempt, TaskResult
from queue_app.registry import type_of
from queue_app.services.lifecycle import steps
from queue_app.services.lifecycle.actions import cancel, reprioritise
from queue_app.services.lifecycle.claim import give_back
from queue_app.services.lifecycle.finish import finish
from queue_app.services.upkeep.promote import make_due
from queue_app.sql import steps as rows
from queue_app.sql.steps import awaited
from queue_app.sql.upkeep import pending_work
from tests.support.engine import Side, assert_index_agrees, at_once, put, row, somebody_waits_for_a_lock
from tests.support.factories import StaffFactory
from tests.support.waiting import until
from tests.workers import step_tasks
from tests.workers.test_steps import clean, run  # noqa: F401 - a fixture

OK = {"ok": True}


def over(task_id) -> None:
    """Let the time of a waiting task be over."""
    StepResult.objects.filter(task_id=task_id, until__isnull=False).update(until=F("stored_at"))
    Task.objects.filter(pk=task_id).update(run_after=F("created_at"))


def result(task_id):
    return TaskResult.objects.get(pk=task_id).value


def test_a_task_waits_without_a_slot_and_goes_on_with_the_signal(hire):
    task_id, worker = put(type_of(step_tasks.refund), max_retries=0), hire()
    task = run(worker, task_id)
    assert (task.status, task.failures, task.run_after, task.queued_at) == (Status.BLOCKED, 0, None, None)
    assert [(one.signal, one.until) for one in awaited(task_id)] == [("approved", None)]
    assert signal(task_id, "approved", OK, by="ina") is True
    assert_index_agrees()
    assert run(worker, task_id).status == Status.COMPLETED
    assert result(task_id) == OK
    assert step_tasks.calls == ["before", "after"]
    assert (Signal.objects.get().sent_by, Signal.objects.get().taken_at is None) == ("ina", False)
    assert not TaskAttempt.objects.exists()


def test_early_signals_are_kept_and_taken_in_order(hire):
    task_id = put(type_of(step_tasks.collect), args=[3])
    assert signal(task_id, "item", 1) is False
    signal(task_id, "other", "x")
    signal(task_id, "item", None)
    worker = hire()
    assert run(worker, task_id).status == Status.BLOCKED
    assert signal(task_id, "other") is False
    assert row(task_id).status == Status.BLOCKED, "a signal of another name wakes nothing"
    signal(task_id, "item", 3)
    assert run(worker, task_id).status == Status.COMPLETED
    assert result(task_id) == [1, None, 3]
    assert list(Signal.objects.filter(taken_at=None).values_list("name", flat=True)) == ["other", "other"]


def test_coroutines_wait_too(hire):
    task_id, worker = put(type_of(step_tasks.acollect), args=[2]), hire()
    run(worker, task_id)
    signal(task_id, "item", "a")
    assert run(worker, task_id).status == Status.BLOCKED
    signal(task_id, "item", "b")
    assert run(worker, task_id).status == Status.COMPLETED
    assert result(task_id) == ["a", "b"]


def test_the_time_to_wait_ends(hire):
    task_id, worker = put(type_of(step_tasks.refund), parameters={"timeout": 3600}), hire()
    task = run(worker, task_id)
    assert timedelta(minutes=59) < task.run_after - task.created_at < timedelta(minutes=61)
    assert pending_work({"due"}, {})[0]["due"] > 0
    assert make_due() == 0
    over(task_id)
    assert pending_work({"due"}, {})[0]["due"] <= 0
    assert make_due() == 1
    assert_index_agrees()
    assert run(worker, task_id).status == Status.COMPLETED
    assert result(task_id) == "late"
    assert StepResult.objects.get(signal="approved").kind == "timeout"


def test_an_attempt_that_died_while_it_began_to_wait_has_set_the_time(hire):
    task_id, worker = put(type_of(step_tasks.refund), parameters={"timeout": 3600}), hire()
    worker.turn()
    claimed = worker.pool.begun[0].task
    worker.pool.finish()
    before = StepResult.objects.get(signal="approved").until
    give_back([claimed])
    task = run(worker, task_id)
    assert (task.attempt, task.status, task.run_after) == (2, Status.BLOCKED, before)


def test_a_signal_that_arrives_with_the_timeout_wins_or_is_kept(hire):
    """The timeout has queued the task, but the task has not taken note of it: the signal is taken."""
    task_id, worker = put(type_of(step_tasks.refund), parameters={"timeout": 3600}), hire()
    run(worker, task_id)
    over(task_id)
    make_due()
    assert signal(task_id, "approved", OK) is False
    run(worker, task_id)
    assert result(task_id) == OK


def test_a_signal_between_the_look_and_the_end_of_the_attempt_is_not_missed(hire):
    task_id, worker = put(type_of(step_tasks.collect), args=[1]), hire()
    worker.turn()
    worker.pool.finish()  # the step found no signal
    signal(task_id, "item", 7)
    worker.run_once()
    assert row(task_id).status == Status.SCHEDULED, "due at once"
    make_due()
    assert run(worker, task_id).status == Status.COMPLETED
    assert result(task_id) == [7]


def test_two_signals_at_once_are_both_kept(hire):
    task_id, worker = put(type_of(step_tasks.collect), args=[2]), hire()
    run(worker, task_id)
    woken = at_once([lambda: signal(task_id, "item", 1), lambda: signal(task_id, "item", 2)])
    assert sorted(woken) == [False, True]
    assert run(worker, task_id).status == Status.COMPLETED
    assert sorted(result(task_id)) == [1, 2]


def test_a_signal_in_a_transaction_that_is_rolled_back_was_not_sent(hire):
    task_id = put(type_of(step_tasks.collect), args=[1])
    run(hire(), task_id)
    with transaction.atomic():
        signal(task_id, "item", 1)
        transaction.set_rollback(True)
    assert row(task_id).status == Status.BLOCKED
    assert not Signal.objects.exists()


def test_an_attempt_that_lost_its_task_takes_no_signal(hire):
    task_id, worker = put(type_of(step_tasks.collect), args=[1]), hire()
    signal(task_id, "item", 1)
    worker.turn()
    give_back([worker.pool.begun[0].task])
    worker.end()
    assert Signal.objects.get().taken_at is None
    assert run(worker, task_id).status == Status.COMPLETED
    assert result(task_id) == [1]


def test_a_repeated_request_takes_no_second_signal(hire, monkeypatch):
    """The answer of the first request was lost, as it can be over HTTP."""
    plain = steps.rows.take
    monkeypatch.setattr(steps.rows, "take", lambda *args: plain(*args) and plain(*args))
    task_id = put(type_of(step_tasks.collect), args=[1])
    signal(task_id, "item", 1)
    signal(task_id, "item", 2)
    assert run(hire(), task_id).status == Status.COMPLETED
    assert result(task_id) == [1]
    assert Signal.objects.filter(taken_at=None).count() == 1


def test_a_waiting_task_can_be_cancelled_and_takes_no_more_signals(hire):
    task_id = put(type_of(step_tasks.collect), args=[1])
    run(hire(), task_id)
    assert cancel(task_id) is Status.CANCELLED
    with pytest.raises(InvalidTransition, match="is cancelled; it takes no more signals"):
        signal(task_id, "item", 1)
    assert awaited(task_id) == []


def test_a_cancel_during_the_attempt_that_begins_to_wait(hire):
    task_id, worker = put(type_of(step_tasks.collect), args=[1]), hire()
    worker.turn()
    cancel(task_id)
    worker.end()
    assert row(task_id).status == Status.CANCELLED


def test_a_waiting_task_can_change_its_band(hire):
    task_id, worker = put(type_of(step_tasks.collect), args=[1]), hire()
    run(worker, task_id)
    reprioritise(task_id, "high")
    assert_index_agrees()
    signal(task_id, "item", 1)
    assert run(worker, task_id).priority == row(task_id).priority


@pytest.mark.parametrize(
    ("payload", "said"),
    [
        (None, "payload must be an object with ok, note."),
        ({}, "payload lacks the field 'ok'."),
        ({"ok": 1}, "ok must be of the type boolean, not 1."),
        ({"okk": True}, "payload has no field 'okk'. Did you mean 'ok'?"),
        ({"ok": True, "note": 3}, "note must be of the type string, not 3."),
    ],
)
def test_a_payload_must_have_what_the_step_declares(hire, payload, said):
    task_id = put(type_of(step_tasks.refund))
    run(hire(), task_id)
    with pytest.raises(InvalidTaskData) as error:
        signal(task_id, "approved", payload)
    assert error.value.message == said
    assert not Signal.objects.exists()


@pytest.mark.parametrize(
    ("name", "payload", "code"), [("a b", 1, "invalid_name"), ("", 1, "invalid_name"), ("a", {1, 2}, "not_json")]
)
def test_bad_signals(hire, name, payload, code):
    with pytest.raises(InvalidTaskData) as error:
        signal(put(), name, payload)
    assert error.value.code == code


def test_a_signal_to_no_task(engine):
    with pytest.raises(TaskNotFound, match="There is no task or workflow"):
        signal("0198c5d1-6f0e-7000-8000-000000000001", "item")


def test_too_many_signals_that_nobody_takes(engine, monkeypatch):
    monkeypatch.setattr(rows, "MAX_UNTAKEN", 2)
    task_id = put()
    for _ in range(2):
        signal(task_id, "item")
    with pytest.raises(InvalidTransition, match="has 2 signals that it has not taken"):
        signal(task_id, "item")


# -- workflows -----------------------------------------------------------------------------


def flow_of(*counts: int) -> tuple[Workflow, list[uuid.UUID]]:
    """Enqueue a workflow of tasks that wait for so many signals each."""
    flow = Workflow("collection")
    nodes = [flow.add(step_tasks.collect, count) for count in counts]
    flow.enqueue()
    get_index().flush()
    return flow, [node.id for node in nodes]


def test_a_signal_to_a_workflow_is_taken_by_one_of_its_tasks(hire):
    flow, tasks = flow_of(1, 1)
    worker = hire()
    worker.until_empty()
    assert {row(task_id).status for task_id in tasks} == {Status.BLOCKED}
    assert signal(flow, "item", "first") is True
    worker.until_empty()
    assert sorted(row(task_id).status for task_id in tasks) == [Status.BLOCKED, Status.COMPLETED]
    assert signal(flow.id, "item", "second") is True
    worker.until_empty()
    assert sorted(result(task_id)[0] for task_id in tasks) == ["first", "second"]
    assert_index_agrees()
    with pytest.raises(InvalidTransition, match="The workflow is completed"):
        signal(flow, "item")


def test_an_early_signal_to_a_workflow_is_kept_and_one_to_the_task_comes_first(hire):
    flow, [task_id] = flow_of(2)
    assert signal(flow, "item", "to the flow") is False
    signal(task_id, "item", "to the task")
    assert run(hire(), task_id).status == Status.COMPLETED
    assert result(task_id) == ["to the task", "to the flow"]


def test_a_task_that_is_cancelled_before_it_takes_the_signal_leaves_it_to_another(hire):
    flow, tasks = flow_of(1, 1)
    worker = hire()
    worker.until_empty()
    signal(flow, "item", 1)
    assert {row(task_id).status for task_id in tasks} == {Status.QUEUED}
    cancel(tasks[0])
    worker.until_empty()
    assert row(tasks[1]).status == Status.COMPLETED
    assert Signal.objects.get().taken_at is not None


@pytest.mark.parametrize("to_workflow", [False, True])
def test_a_signal_during_the_end_of_the_attempt_waits_for_it(hire, to_workflow):
    flow, [task_id] = flow_of(1) if to_workflow else (None, [put(type_of(step_tasks.collect), args=[1])])
    worker = hire()
    worker.turn()
    worker.pool.finish()
    with transaction.atomic():
        finish(worker.pool.take_outcomes())
        side = Side(lambda: signal(flow or task_id, "item", 1))
        until(somebody_waits_for_a_lock, "the signal waits for the row")
    assert side.result() is True
    assert row(task_id).status == Status.QUEUED


def test_the_fields_that_the_decorator_names_are_the_form_of_the_task(hire, client):
    task_id, worker = put(type_of(step_tasks.declared)), hire()
    assert run(worker, task_id).status == Status.BLOCKED
    client.force_login(StaffFactory(is_superuser=True))
    address = reverse("admin:queue_app_task_signal", args=[task_id])
    page = client.get(address).content.decode()
    assert page.index("Ship it?") < page.index("Size") < page.index('<option value="L">'), "in the declared order"
    assert "Payload" not in page
    refused = client.post(address, {"field_ok": "true", "field_size": "XL"}).content.decode()
    assert "XL is not one of the available choices" in refused
    assert not Signal.objects.exists()
    assert client.post(address, {"field_ok": "false", "field_size": "L"}).status_code == 302
    assert run(worker, task_id).status == Status.COMPLETED
    assert result(task_id) == {"ok": False, "size": "L"}
