"""run_now, retry and run_again: a scheduled task runs early, an ended task runs again, a dead letter is replayed."""

from datetime import UTC, datetime, timedelta

import pytest

from queue_app.core.records import NewTask
from queue_app.core.states import Status
from queue_app.exceptions import InvalidTransition, TaskNotFound
from queue_app.models import DeadLetter, Task, TaskPayload
from queue_app.services import cancel, enqueue
from queue_app.services.lifecycle.actions import retry, retry_many, run_again, run_now
from queue_app.services.lifecycle.finish import finish
from tests.support.dead_letters import make_dead_letter
from tests.support.engine import assert_index_agrees, failed, put, row, take

pytestmark = pytest.mark.both_ways

UNKNOWN = "01900000-0000-7000-8000-000000000000"


def test_a_scheduled_task_runs_now_and_no_other_does(engine):
    later = put(run_after=datetime.now(UTC) + timedelta(days=1))
    run_now(later)
    assert row(later).status == Status.QUEUED
    assert_index_agrees()
    with pytest.raises(InvalidTransition, match="only scheduled tasks"):
        run_now(later)
    with pytest.raises(TaskNotFound):
        run_now(UNKNOWN)


def test_unsuccessful_tasks_are_queued_again_with_a_fresh_budget(engine):
    hand = engine.worker("a")
    task_id = put(max_retries=0)
    [task] = take(hand)
    finish([failed(task, retriable=False)])
    cancelled = put()
    cancel(cancelled)
    letter = make_dead_letter(hand)
    ids = [task_id, cancelled, letter.task_id]
    assert retry_many(ids, by="ina") == set(ids)
    again = Task.objects.filter(pk__in=ids)
    assert {(task.status, task.failures, task.cancel_requested_at) for task in again} == {("queued", 0, None)}
    assert row(task_id).attempt == 1, "the fence goes on"
    assert DeadLetter.objects.get(pk=letter.pk).replayed_by == "ina"
    assert_index_agrees()
    assert retry_many(ids) == set()
    with pytest.raises(InvalidTransition, match="ended without success"):
        retry(task_id)


def test_a_task_runs_again_as_a_new_one_with_hidden_values_kept(engine, monkeypatch):
    monkeypatch.setattr("queue_app.registry.get", lambda name: name)
    first = enqueue(NewTask(task_type="a", parameters={"order": 1, "token": "tok_5f2c9e81"}, queue="q", user="ina")).id
    second = run_again(first, parameters={"order": 2, "token": "********"}).id
    assert second != first
    assert TaskPayload.objects.get(pk=second).parameters == {"order": 2, "token": "tok_5f2c9e81"}
    assert (row(second).queue, row(second).user, row(second).task_type) == ("q", "ina", "a")
    assert TaskPayload.objects.get(pk=run_again(first).id).parameters == {"order": 1, "token": "tok_5f2c9e81"}
    with pytest.raises(TaskNotFound):
        run_again(UNKNOWN)
