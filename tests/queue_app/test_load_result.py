"""load_result: what became of a task, for django.tasks."""

import uuid

from django.tasks import TaskResultStatus

from queue_app.models import Task
from queue_app.results import earlier_attempts, load_result, load_results
from queue_app.services.lifecycle.claim import give_back
from queue_app.services.lifecycle.finish import finish
from queue_app.services.upkeep.promote import make_due
from queue_app.services.worker.registration import WorkerIdentity, register
from tests.support.engine import done, failed, put, row, take


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
