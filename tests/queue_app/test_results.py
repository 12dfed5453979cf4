"""What callers of django.tasks see of a stored task."""

from datetime import timedelta
from enum import IntEnum

import pytest
from django.tasks import TaskResult, TaskResultStatus, default_task_backend, task
from django.tasks.exceptions import InvalidTask, TaskResultMismatch

from queue_app.backend.results import RESULT_STATUS
from queue_app.core.priorities import Band
from queue_app.core.records import NewTask
from queue_app.core.states import Status
from queue_app.exceptions import UnknownTaskType
from queue_app.models import Task
from queue_app.registry import type_of
from queue_app.services.enqueue.store import enqueue
from queue_app.services.lifecycle.actions import cancel
from queue_app.services.lifecycle.finish import finish
from tests.queue_app.test_backend import add, render, report
from tests.support.engine import done, failed, take
from tests.support.scene import Hand


@task
def anything(*args: object, **kwargs: object) -> None:
    pass


class Number(IntEnum):
    ONE = 1


@pytest.fixture
def worker(engine) -> Hand:
    """A worker that runs a task of this module."""
    return engine.worker(type_of(add))


def test_every_state_has_a_status():
    assert set(RESULT_STATUS) == set(Status)


def test_a_result_from_ready_to_successful(engine, worker):
    result = add.enqueue(1, b=2)
    result.refresh()
    assert result.status is TaskResultStatus.READY
    [claimed] = take(worker)
    result.refresh()
    assert (result.status, result.worker_ids, result.attempts) == (TaskResultStatus.RUNNING, [str(worker.id)], 1)
    assert result.started_at == result.last_attempted_at == claimed.started_at
    with pytest.raises(ValueError, match="not finished"):
        _ = result.return_value
    finish([done(claimed, "3")])
    result.refresh()
    assert (result.status, result.return_value, result.is_finished) == (TaskResultStatus.SUCCESSFUL, 3, True)
    assert add.get_result(result.id).return_value == 3


def test_a_result_of_none(engine, worker):
    result = add.enqueue(1)
    finish([done(claimed) for claimed in take(worker)])
    result.refresh()
    assert result.return_value is None


@pytest.mark.parametrize("retriable", [True, False])
def test_a_failed_result_carries_its_errors(engine, worker, retriable):
    result = add.using(max_retries=0).enqueue(1)
    finish([failed(claimed, retriable=retriable) for claimed in take(worker)])
    result.refresh()
    assert result.status is TaskResultStatus.FAILED
    assert result.errors[0].exception_class is ValueError
    assert "Traceback" in result.errors[0].traceback
    with pytest.raises(ValueError, match="Task failed"):
        _ = result.return_value


def test_a_failure_that_will_be_tried_again_is_ready(engine, worker):
    result = add.enqueue(1)
    finish([failed(claimed) for claimed in take(worker)])
    result.refresh()
    assert (result.status, len(result.errors)) == (TaskResultStatus.READY, 1)


def test_a_cancelled_task_has_failed(engine):
    result = add.enqueue(1)
    cancel(Task.objects.get().pk)
    result.refresh()
    assert result.status is TaskResultStatus.FAILED


def test_the_result_of_another_task_is_refused(engine):
    with pytest.raises(TaskResultMismatch):
        report.get_result(add.enqueue(1).id)


# -- new ones ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "kwargs", [{}, {"b": 1}, {"b": None, "c": "x", "d": 1.5, "e": True}, {"b": (1, {"c": (2,)})}, {"b": Number.ONE}]
)
def test_a_result_holds_what_django_would_make_of_the_arguments(engine, kwargs):
    given = {"task": add, "args": (1, (2,)), "kwargs": kwargs, "status": TaskResultStatus.READY, "backend": "default"}
    times = dict.fromkeys(("enqueued_at", "started_at", "finished_at", "last_attempted_at"))
    expected = TaskResult(id="x", errors=[], worker_ids=[], **given, **times)
    [found] = default_task_backend.enqueue_many(anything, [((1, (2,)), kwargs)])
    assert (found.args, found.kwargs) == (expected.args, expected.kwargs)
    assert repr(found.kwargs) == repr(expected.kwargs), "types too"
    assert found.kwargs is not kwargs


# -- what others may find changed ----------------------------------------------------------------


def test_a_result_keeps_the_options_of_its_call(engine):
    variant = report.using(priority=60, queue_name="q", user="bob", timeout=timedelta(seconds=9), max_attempts=4)
    found = report.get_result(variant.enqueue("x").id).task
    assert found == variant.using(priority=50, timeout=9.0, max_retries=3), "a row knows bands, seconds and retries"
    assert report.get_result(report.enqueue("x").id).task == report
    assert render.get_result(render.enqueue(1).id).task == render


def test_a_task_whose_function_is_gone_can_be_read(engine):
    stored = enqueue(NewTask(task_type="shop.tasks.gone", args=[1], queue="mail", priority=Band.LOW))
    result = default_task_backend.get_result(str(stored.id))
    assert (result.task.module_path, result.task.name) == ("shop.tasks.gone", "gone")
    assert (result.task.queue_name, result.task.priority, result.args) == ("mail", -50, [1])
    result.refresh()
    with pytest.raises(InvalidTask, match=r"shop.tasks.gone.* no longer exists"):
        result.task.enqueue(1)
    with pytest.raises(UnknownTaskType):
        result.task.call(1)
    with pytest.raises(TaskResultMismatch):
        add.get_result(result.id)


def test_a_task_whose_queue_is_gone_can_be_read(engine, settings):
    result = add.using(queue_name="old").enqueue(1)
    settings.TASKS = {"default": {"BACKEND": "queue_app.backend.TaskQueueBackend", "QUEUES": ["new", "default"]}}
    result.refresh()
    assert add.get_result(result.id).task.queue_name == "old"
    with pytest.raises(InvalidTask, match="Queue 'old' is not valid for backend"):
        result.task.enqueue(1)
