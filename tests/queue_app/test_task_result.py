"""What callers can do with the result of a task: wait, cancel, explain, look at progress, row and children."""

import asyncio
import threading
import uuid
from datetime import timedelta

import pytest
from asgiref.sync import ThreadSensitiveContext, async_to_sync, sync_to_async
from django.db import connection, transaction
from django.db.transaction import TransactionManagementError
from django.tasks import TaskResultStatus, default_task_backend
from django.tasks.exceptions import TaskResultDoesNotExist

from queue_app import chain, task
from queue_app.backend.results import QueueTaskResult, earlier_attempts, load_result, load_results
from queue_app.core.records import ProgressReport
from queue_app.core.states import Status
from queue_app.exceptions import InvalidTransition, TaskFailed, TaskNotFound
from queue_app.models import Task
from queue_app.registry import type_of
from queue_app.services.lifecycle.actions import cancel
from queue_app.services.lifecycle.claim import give_back
from queue_app.services.lifecycle.finish import finish, record_progress
from queue_app.services.notify import subscribe
from queue_app.services.notify.subscribe import hub
from queue_app.services.upkeep.promote import make_due
from queue_app.services.worker.registration import WorkerIdentity, register
from tests.queue_app.test_backend import add
from tests.support.engine import Side, done, failed, put, row, take
from tests.support.waiting import until


@task
def double(number: int) -> int:
    return 2 * number


@task(max_retries=0)
def breaks() -> None:
    raise ValueError("no good")


@pytest.fixture
def worker(engine):
    return engine.worker(" ".join(map(type_of, (add, double, breaks))))


# -- wait --------------------------------------------------------------------------------------


def test_wait_returns_the_return_value(worker):
    result = add.enqueue(1, b=2)
    assert isinstance(result, QueueTaskResult)
    waiting = Side(lambda: result.wait(60))
    until(lambda: hub.busy, "a caller waits")
    finish([done(take(worker)[0], "3")])
    assert waiting.result() == 3
    assert result.is_finished
    assert add.get_result(result.id).wait() == 3


def test_a_coroutine_waits_without_a_thread(worker):
    result = add.enqueue(1)

    async def both():
        waiting = asyncio.ensure_future(result.await_(60))
        await asyncio.to_thread(until, lambda: hub.busy, "a caller waits")
        await sync_to_async(lambda: finish([done(take(worker)[0], "1")]))()
        return await waiting

    assert async_to_sync(both)() == 1


def test_a_waiting_request_holds_no_connection(engine, monkeypatch):
    """An ASGI server runs the queries of each request in a thread of its own, with a connection of its own."""
    looks, has_ended = [], subscribe._has_ended
    monkeypatch.setattr(subscribe, "_has_ended", lambda task_id: looks.append(task_id) or has_ended(task_id))

    async def request():
        async with ThreadSensitiveContext():
            result = await add.aenqueue(1)
            waiting = asyncio.ensure_future(result.await_(60))
            await asyncio.to_thread(until, lambda: looks, "it has looked")
            is_open = await sync_to_async(lambda: connection.connection is not None)()  # in the request's thread
            waiting.cancel()
            return is_open

    assert asyncio.run(request()) is False


def test_a_cancelled_wait_leaves_no_listener(engine, monkeypatch):
    """Also if it is cancelled before the thread that reads the events is ready, as when a client disconnects."""
    result, is_ready = add.enqueue(1), threading.Event()
    until(lambda: not hub.busy, "the thread of earlier waits has ended")
    monkeypatch.setattr(subscribe.events, "last_id", lambda: is_ready.wait(60) and "0-0")

    async def disconnect():
        waiting = asyncio.ensure_future(result.await_(60))
        await asyncio.to_thread(until, lambda: hub.busy, "a caller waits")
        waiting.cancel()
        await asyncio.wait([waiting])

    asyncio.run(disconnect())
    is_ready.set()
    until(lambda: not hub.busy, "nobody listens, so the thread ends")


@pytest.mark.parametrize(
    "wait", [lambda result: result.wait(timedelta(seconds=0.05)), lambda result: async_to_sync(result.await_)(0.05)]
)
def test_a_wait_ends_in_time(engine, wait):
    result = add.enqueue(1)
    with pytest.raises(TimeoutError, match=f"The task {result.id} is still queued after 0.05 s"):
        wait(result)


@pytest.mark.parametrize(
    ("timeout", "error"),
    [(float("nan"), ValueError), (-1, ValueError), (timedelta(-1), ValueError), ("1", TypeError), (True, TypeError)],
)
def test_a_timeout_that_would_never_come_is_refused(engine, timeout, error):
    result = add.enqueue(1)
    with pytest.raises(error, match="timeout"):
        result.wait(timeout)
    with pytest.raises(error, match="timeout"):
        async_to_sync(result.await_)(timeout)


def test_a_failure_is_raised_with_its_last_error(worker):
    result = breaks.enqueue()
    finish([failed(take(worker)[0], "no good", retriable=False)])
    with pytest.raises(TaskFailed, match=f"The task {result.id} ended without success: ") as told:
        result.wait(1)
    assert len(told.value.errors) == 1


def test_a_cancelled_task_has_no_value(engine):
    result = add.enqueue(1)
    result.cancel()
    with pytest.raises(TaskFailed, match="it was cancelled or has expired"):
        result.wait(1)


def test_nobody_waits_inside_a_transaction(engine):
    with transaction.atomic():
        result = add.enqueue(1)
        with pytest.raises(TransactionManagementError, match="no worker sees a task before"):
            result.wait(1)


# -- cancel, explain, progress, row, children --------------------------------------------------


def test_cancel(worker):
    result, other = add.enqueue(1), add.enqueue(2)
    assert result.cancel() is Status.CANCELLED
    with pytest.raises(InvalidTransition):
        result.cancel()
    take(worker)
    assert async_to_sync(other.acancel)() is Status.EXECUTING


def test_explain_and_row(engine):
    result = add.enqueue(1)
    assert "no_worker" in result.explain().codes
    assert result.row.status == "queued"
    Task.objects.all().delete()
    with pytest.raises(TaskNotFound):
        _ = result.row


def test_progress(worker):
    result = add.enqueue(1)
    assert result.progress is None
    (held,) = take(worker)
    record_progress([ProgressReport(held.id, held.attempt, held.worker_id, progress=0.5, message="half")])
    assert (result.progress.fraction, result.progress.message) == (0.5, "half")


def test_children(engine):
    chain((add, 1), double, double).enqueue("sums")
    ids = Task.objects.order_by("id").values_list("pk", flat=True)
    first, second, third = map(default_task_backend.get_result, ids)
    assert [child.id for child in first.children] == [second.id]
    assert [child.id for child in second.children] == [third.id]
    assert third.children == add.enqueue(1).children == []


# -- ids ---------------------------------------------------------------------------------------


def test_an_id_may_be_text_or_a_uuid(engine):
    result = add.enqueue(1)
    as_uuid = uuid.UUID(result.id)
    assert add.get_result(as_uuid).id == add.get_result(result.id.upper()).id == result.id
    assert cancel(as_uuid) is Status.CANCELLED
    with pytest.raises(TaskResultDoesNotExist):
        add.get_result("7")


# -- in tests of a project ---------------------------------------------------------------------------------


def test_the_testing_backend_runs_what_a_test_waits_for(testing_backend):
    assert add.enqueue(1, b=2).wait() == 3
    assert async_to_sync(add.enqueue(2).await_)() == 2
    with pytest.raises(ValueError, match="timeout"):
        add.enqueue(1).wait(float("nan"))


def test_the_testing_backend_raises_what_the_real_one_raises(testing_backend):
    assert add.enqueue(1).row.status == Status.QUEUED
    with pytest.raises(TaskFailed, match="ValueError: no good"):
        breaks.enqueue().wait()
    result = add.enqueue(1)
    assert result.cancel() is Status.CANCELLED
    with pytest.raises(InvalidTransition):
        result.cancel()


# -- loading ---------------------------------------------------------------------------------------------------------


def test_an_unknown_task(engine):
    assert load_result(uuid.uuid4(), "default") is None


def test_a_task_that_waits(engine):
    task_id = put("a", args=[1], parameters={"x": 2})
    result = load_result(task_id, "default")
    assert (row(task_id).status, result.args, result.kwargs) == ("queued", [1], {"x": 2})
    assert result.status is TaskResultStatus.READY
    assert (result.started_at, result.last_attempted_at, result.finished_at) == (None, None, None)
    assert (result.errors, result.worker_ids) == ([], [])


def test_a_task_from_its_first_failure_to_its_result(engine):
    task_id = put(max_retries=3)
    one, two = engine.worker(), engine.worker()
    [first] = take(one)
    finish([failed(first)])
    result = load_result(task_id, "default")
    assert (row(task_id).status, result.worker_ids, len(result.errors)) == ("scheduled", [str(one.id)], 1)
    assert result.errors[0].exception_class is ValueError
    Task.objects.update(run_after="2026-01-01T00:00Z")
    make_due()
    [second] = take(two)
    assert load_result(task_id, "default").worker_ids == [str(one.id), str(two.id)]
    finish([done(second, '{"x": [1]}')])
    result = load_result(task_id, "default")
    assert (row(task_id).status, result.return_value, result.worker_ids) == (
        "completed",
        {"x": [1]},
        [str(one.id), str(two.id)],
    )
    assert result.started_at < result.last_attempted_at <= result.finished_at


def test_what_was_given_back_has_no_worker(engine):
    task_id = put()
    give_back(take(engine.worker()))
    assert load_result(task_id, "default").worker_ids == []


def test_workers_are_named_as_people_know_them(engine):
    task_id, hand = put(), engine.worker()
    identity = WorkerIdentity(id=hand.id, name="web1:77", host="h", pid=77, process_identity="", version="1")
    register(identity, hand.profile, concurrency=1, heartbeat_seconds=10)
    finish([failed(task) for task in take(hand)])
    assert load_result(task_id, "default").worker_ids == ["web1:77"]
    assert earlier_attempts(task_id)[1] == ["web1:77"]


def test_many_results_take_as_many_queries_as_one(engine, django_assert_num_queries):
    ids = [put() for _ in range(5)]
    finish([done(task, "7") for task in take(engine.worker(), 2)])
    with django_assert_num_queries(5):  # tasks, payloads, attempts, values, names of the workers
        found = load_results([*ids, uuid.uuid4()], "default")
    assert set(found) == set(ids)
    assert sorted(str(result.status) for result in found.values()) == ["READY"] * 3 + ["SUCCESSFUL"] * 2
