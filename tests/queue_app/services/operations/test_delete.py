"""Ended tasks are deleted with all that is stored about them; one that has not ended never is."""

import pytest

from queue_app.exceptions import InvalidTransition, TaskNotFound
from queue_app.models import DeadLetter, Task, TaskAttempt, TaskPayload, TaskResult
from queue_app.models.operation import OperationKind
from queue_app.services.lifecycle.actions import cancel, delete, delete_many, replay
from queue_app.services.lifecycle.finish import finish
from queue_app.services.operations.request import Action, start_operation
from queue_app.services.operations.run import run_operations
from queue_app.services.read.task_filter import TaskFilter
from tests.support.engine import assert_index_agrees, done, failed, put, take

CHILDREN = (TaskPayload, TaskResult, TaskAttempt)


def ended(hand, **options):
    """Return a completed, a failed, a cancelled and a dead task."""
    ids = [put(max_retries=0, **options) for _ in range(4)]
    tasks = {task.id: task for task in take(hand, 4)}
    completed, broken, cancelled, dead = (tasks[task_id] for task_id in ids)
    cancel(cancelled.id)
    finish([done(completed, "1"), failed(broken, retriable=False), done(cancelled), failed(dead)])
    return ids


def test_an_ended_task_is_gone_with_its_children_and_its_dead_letter(engine):
    ids = ended(engine.worker())
    for task_id in ids:
        delete(str(task_id))
    assert Task.objects.count() == DeadLetter.objects.count() == 0
    assert [model.objects.count() for model in CHILDREN] == [0, 0, 0]
    assert_index_agrees()
    with pytest.raises(TaskNotFound):
        delete(ids[0])


def test_what_has_not_ended_stays(engine):
    waiting, later = put(), put(delay=60)
    [running] = take(engine.worker())
    assert delete_many([waiting, later, running.id]) == set()
    for task_id, status in ((later, "scheduled"), (running.id, "executing")):
        with pytest.raises(InvalidTransition) as refused:
            delete(task_id)
        assert (refused.value.status, status in str(refused.value)) == (status, True)
    assert Task.objects.count() == 2
    finish([done(running)])
    assert delete_many([running.id]) == {running.id}


def test_a_replayed_task_runs_again_and_stays(engine):
    """The delete was requested while the task was dead."""
    [*_, dead] = ended(engine.worker())
    replay(DeadLetter.objects.get().id, by="ann")
    assert delete_many([dead]) == set()
    assert Task.objects.get(pk=dead).status == "queued"


def test_an_operation_deletes_by_filter_and_skips_what_runs(engine):
    hand = engine.worker()
    ended(hand)
    kept = ended(hand, user="eve")
    put()
    operation = start_operation(Action(kind=OperationKind.DELETE), TaskFilter(user="", statuses=["failed"]), by="ann")
    assert operation.total == 1
    run_operations()
    operation.refresh_from_db()
    assert (operation.state, operation.changed) == ("done", 1)
    assert set(Task.objects.filter(status="failed").values_list("user", flat=True)) == {"eve"}
    assert Task.objects.filter(pk__in=kept).count() == 4
