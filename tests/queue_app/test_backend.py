"""The django.tasks backend: Django's own @task and .enqueue() on this queue."""

from dataclasses import FrozenInstanceError
from datetime import UTC, datetime, timedelta

import django
import pytest
from asgiref.sync import async_to_sync
from django.core.exceptions import ImproperlyConfigured
from django.db import transaction
from django.tasks import TaskResultStatus, default_task_backend, task, task_backends
from django.tasks.exceptions import InvalidTask, TaskResultDoesNotExist
from django.tasks.signals import task_enqueued

from queue_app import task as queue_task
from queue_app.backend import QueueTask, TaskQueueBackend
from queue_app.core.priorities import Band
from queue_app.exceptions import IdempotencyConflict, InvalidTaskData, UnserializableParameters
from queue_app.models import Task
from queue_app.services.lifecycle.finish import finish
from tests.support.engine import done, rolled_back, take
from tests.support.scene import Hand


@task
def add(a: int, b: int = 0) -> int:
    return a + b


@task(priority=80, queue_name="reports", takes_context=True)
def report(context, name: str) -> str:
    return name


@task
async def fetch(url: str) -> str:
    return url


@(task if django.VERSION >= (6, 1) else queue_task)(
    capabilities=("gpu",), timeout=5, max_retries=1, retry_delay=0.5, user="ann"
)
def render(frame: int) -> int:
    return frame


def not_decorated() -> None:
    pass


@pytest.fixture
def worker(engine) -> Hand:
    """A worker that runs the tasks of this module."""
    return engine.worker(
        " ".join(f"{__name__}.{name}" for name in ("add", "report", "fetch", "render")), offers=["gpu"]
    )


def test_the_backend_says_what_it_can():
    backend = task_backends["default"]
    assert isinstance(backend, TaskQueueBackend)
    assert backend.supports_defer
    assert backend.supports_async_task
    assert backend.supports_get_result
    assert backend.supports_priority
    assert isinstance(add, QueueTask)


# -- enqueue ---------------------------------------------------------------------------


def test_enqueue_stores_the_call(engine):
    result = add.enqueue(1, b=2)
    row = Task.objects.get(pk=result.id)
    assert (row.task_type, row.queue, row.band) == (f"{__name__}.add", "default", Band.NORMAL)
    assert (result.status, result.args, result.kwargs) == (TaskResultStatus.READY, [1], {"b": 2})
    assert result.enqueued_at == row.created_at
    assert (result.started_at, result.finished_at, result.last_attempted_at) == (None, None, None)
    assert (result.errors, result.worker_ids, result.attempts, result.is_finished) == ([], [], 0, False)
    assert result.task is add
    assert result.backend == "default"


def test_enqueue_belongs_to_the_callers_transaction(engine):
    with rolled_back():
        gone = add.enqueue(1)
    with transaction.atomic():
        kept = add.enqueue(1)
    assert [str(pk) for pk in Task.objects.values_list("pk", flat=True)] == [kept.id]
    with pytest.raises(TaskResultDoesNotExist):
        add.get_result(gone.id)


def test_aenqueue(engine):
    result = async_to_sync(fetch.aenqueue)("x")
    assert async_to_sync(fetch.aget_result)(result.id).args == ["x"]


def test_options_of_the_decorator(engine):
    row = Task.objects.get(pk=render.enqueue(1).id)
    assert (row.capabilities, row.timeout, row.max_retries, row.retry_delay, row.user) == (["gpu"], 5, 1, 0.5, "ann")


def test_options_by_using(engine):
    variant = add.using(
        priority=-60,
        queue_name="q",
        capabilities=["ssd", "gpu"],
        timeout=timedelta(minutes=1),
        max_retries=0,
        retry_delay=2,
        idempotency_key="k",
        user="bob",
    )
    row = Task.objects.get(pk=variant.enqueue(1).id)
    assert (row.band, row.queue, row.capabilities, row.timeout) == (Band.LOW, "q", ["gpu", "ssd"], 60)
    assert (row.max_retries, row.retry_delay, row.idempotency_key, row.user) == (0, 2, "k", "bob")
    assert add.capabilities == ()
    assert variant.using(user="eve").timeout == timedelta(minutes=1), "the others stay"


def test_a_task_cannot_be_changed():
    with pytest.raises(FrozenInstanceError):
        add.timeout = 5


def test_run_after(engine):
    result = add.using(run_after=datetime.now(UTC) + timedelta(hours=1)).enqueue(1)
    assert Task.objects.get(pk=result.id).status == "scheduled"
    assert result.status is TaskResultStatus.READY
    with pytest.raises(InvalidTaskData, match="ten years"):
        add.using(run_after=datetime(9999, 1, 1, tzinfo=UTC)).enqueue(1)


def test_a_context_is_not_stored(engine):
    assert report.enqueue("x").args == ["x"]
    with pytest.raises(InvalidTask, match="context"):
        task(takes_context=True)(add.func)


@pytest.mark.parametrize(
    ("args", "error"),
    [([object()], UnserializableParameters), ([b"\xff"], UnserializableParameters), (["x" * 300_000], InvalidTaskData)],
)
def test_bad_parameters_store_nothing(engine, args, error):
    with pytest.raises(error):
        add.enqueue(*args)
    with pytest.raises(error):
        task_backends["default"].enqueue_many(add, [((1,), {}), (args, {})])
    assert Task.objects.count() == 0


def test_a_replayed_key_returns_what_became_of_the_first(engine, worker):
    keyed = add.using(idempotency_key="k")
    first = keyed.enqueue(1)
    finish([done(claimed, "1") for claimed in take(worker)])
    again = keyed.enqueue(1)
    assert (again.id, again.status, again.return_value) == (first.id, TaskResultStatus.SUCCESSFUL, 1)
    with pytest.raises(IdempotencyConflict):
        keyed.enqueue(2)


# -- enqueue_many --------------------------------------------------------------------------


def test_enqueue_many_returns_results_in_order(engine, worker):
    results = default_task_backend.enqueue_many(add, [((n,), {"b": n}) for n in range(20)])
    assert [(result.args, result.kwargs) for result in results] == [([n], {"b": n}) for n in range(20)]
    assert [str(claimed.id) for claimed in take(worker, 20)] == [result.id for result in results]


# -- signals -----------------------------------------------------------------------------------


def test_listeners_hear_of_every_task(engine):
    heard = []
    task_enqueued.connect(listener := lambda sender, task_result, **_: heard.append((sender, task_result.id)))
    try:
        results = [add.enqueue(1), *default_task_backend.enqueue_many(add, [((2,), {}), ((3,), {})])]
    finally:
        task_enqueued.disconnect(listener)
    assert heard == [(TaskQueueBackend, result.id) for result in results]


@pytest.mark.parametrize("result_id", ["01a1fc14-da10-717b-a823-56ad4650e023", "abc", "", "../1", None, 5, "0" * 5000])
def test_an_unknown_id(engine, result_id):
    with pytest.raises(TaskResultDoesNotExist):
        add.get_result(result_id)


# -- configuration --------------------------------------------------------------------------------------


def test_options_in_tasks_belong_elsewhere():
    [message] = TaskQueueBackend("x", {"OPTIONS": {"timeout": 5}}).check()
    assert message.id == "queue_app.E005"
    assert "timeout" in message.msg
    assert TaskQueueBackend("x", {}).check() == []


def test_a_broken_setting_is_said_at_the_first_enqueue(rows, settings):
    settings.TASKQUEUE = {"REDIS_ALAIS": "x"}
    with pytest.raises(ImproperlyConfigured, match="REDIS_ALIAS"):
        add.enqueue(1)


@pytest.mark.parametrize(("queues", "named"), [("default", "'default'"), (["fine", "not fine"], "'not fine'")])
def test_queues_that_cannot_be_meant(queues, named):
    messages = TaskQueueBackend("x", {"QUEUES": queues}).check()
    assert {message.id for message in messages} == {"queue_app.E021"}
    assert named in messages[0].msg


def test_the_app_must_be_installed(settings):
    settings.INSTALLED_APPS = [name for name in settings.INSTALLED_APPS if name != "queue_app"]
    assert [message.id for message in TaskQueueBackend("x", {}).check()] == ["queue_app.E020"]
