"""Admission: a queue never holds more waiting tasks than its limit, nor a user more pending tasks."""

import uuid
from datetime import UTC, datetime, timedelta

import pytest

from queue_app import Workflow
from queue_app.core.events import EventName
from queue_app.core.graph import Graph
from queue_app.core.states import Status
from queue_app.exceptions import QueueFull, UserLimitExceeded
from queue_app.models import RuntimeSettings, Task
from queue_app.services.enqueue.store import enqueue, enqueue_many
from queue_app.services.enqueue.validate import check_task
from queue_app.services.lifecycle.claim import give_back
from queue_app.services.lifecycle.finish import finish
from queue_app.services.notify.events import last_id, read
from queue_app.workflows.store import add_nodes
from tests.support.admission import from_outside, limit, outcome_of
from tests.support.engine import assert_index_agrees, done, failed, new, put, put_many, status, take
from tests.workers.flow_tasks import node


def aged(seconds: float, **options) -> uuid.UUID:
    task_id = put(**options)
    Task.objects.filter(pk=task_id).update(queued_at=datetime.now(UTC) - timedelta(seconds=seconds))
    return task_id


# -- what counts ----------------------------------------------------------------------------------------


def test_scheduled_tasks_count_and_running_ones_do_not(engine):
    limit(max_length=2)
    put()
    put(run_after=datetime.now(UTC) + timedelta(hours=1))
    assert outcome_of(put) == "queue_full"
    (running,) = take(engine.worker())
    assert outcome_of(put) == "stored"
    assert running.queue == "default"


def test_all_pending_tasks_of_a_user_count(engine):
    limit(max_pending_per_user=2)
    put(user="ada")
    take(engine.worker())
    put(user="ada", run_after=datetime.now(UTC) + timedelta(hours=1))
    assert outcome_of(lambda: put(user="ada")) == "user_limit_exceeded"
    assert outcome_of(lambda: put(user="bob")) == "stored"
    assert [outcome_of(put) for _ in range(3)] == ["stored"] * 3, "tasks without a user have no such limit"
    assert outcome_of(lambda: put(user="ada", queue="other")) == "stored"


def test_the_limit_of_the_runtime_settings_covers_all_queues_without_one(engine):
    RuntimeSettings.objects.update(max_pending_per_user=2)
    limit("roomy", max_pending_per_user=5)
    put(user="ada", queue="a")
    put(user="ada", queue="b")
    assert outcome_of(lambda: put(user="ada", queue="c")) == "user_limit_exceeded"
    outcomes = [outcome_of(lambda: put(user="ada", queue="roomy")) for _ in range(6)]
    assert outcomes == ["stored"] * 5 + ["user_limit_exceeded"]
    with pytest.raises(UserLimitExceeded, match="'ada' has 5 of at most 5 pending tasks in the queue 'roomy'"):
        put(user="ada", queue="roomy")


def test_defaults_apply_only_to_tasks_from_outside(engine, settings):
    settings.TASKQUEUE = settings.TASKQUEUE | {"ADMISSION": {"MAX_PENDING_PER_USER": 2}}
    RuntimeSettings.objects.update(max_length=4)
    put_many(3, user="ada")
    assert outcome_of(lambda: from_outside(user="ada")) == "user_limit_exceeded"
    assert outcome_of(lambda: from_outside(user="bob")) == "stored"
    assert outcome_of(lambda: from_outside(user="eve")) == "queue_full"
    put_many(3)
    assert outcome_of(from_outside) == "queue_full"
    RuntimeSettings.objects.all().delete()
    assert outcome_of(from_outside) == "stored", "10 000 without the row"


def test_retries_and_tasks_given_back_find_their_place(engine):
    limit(max_length=1)
    put(max_retries=3)
    worker = engine.worker()
    (running,) = take(worker)
    put()
    give_back([running])
    assert Task.objects.filter(status=Status.QUEUED).count() == 2
    (again,) = take(worker)
    finish([failed(again)])
    assert status(again.id) == Status.SCHEDULED
    assert outcome_of(put) == "queue_full"


# -- many at once, and again ------------------------------------------------------------------------


def test_many_are_stored_all_or_none(engine):
    limit(max_length=10)
    put_many(8)
    with pytest.raises(QueueFull) as refused:
        put_many(3)
    assert (refused.value.limit, refused.value.current, refused.value.asked) == (10, 8, 3)
    with pytest.raises(QueueFull):
        enqueue_many([new(queue="other"), new(), new(), new(idempotency_key="k")])
    assert Task.objects.count() == 8
    put_many(2)
    assert_index_agrees()


def test_a_task_that_is_already_stored_needs_no_place(engine):
    limit(max_length=2, max_pending_per_user=2)
    first = enqueue(new(user="ada", idempotency_key="one"))
    put(user="ada")
    again = enqueue(new(user="ada", idempotency_key="one"), outside=True)
    assert (again.id, again.created) == (first.id, False)
    both = enqueue_many([new(user="ada", idempotency_key="one"), new(user="ada", idempotency_key="one")])
    assert [item.created for item in both] == [False, False]
    assert outcome_of(lambda: put(user="ada", idempotency_key="two")) == "user_limit_exceeded"
    limit(max_length=3, max_pending_per_user=3)
    twice = enqueue_many([new(user="ada", idempotency_key="two")] * 2)
    assert [item.created for item in twice] == [True, False], "one place for a key that comes twice"


def test_a_workflow_needs_a_place_for_each_task_and_its_running_tasks_may_add_more(engine):
    limit(max_length=2)
    flow = Workflow("chain")
    flow.add(node, "last", after=[flow.add(node, "first")])
    flow.enqueue()
    with pytest.raises(QueueFull):
        put_many(2)
    put()
    (running,) = take(engine.worker("tests.workers.flow_tasks.node"))
    graph = Graph(rows=[check_task(new()) for _ in range(3)])
    assert len(add_nodes(flow.id, graph, added_by=running.key)) == 3
    finish([done(running)])
    assert Task.objects.filter(status="queued").count() == 4


# -- stale ones make room ---------------------------------------------------------------------------


@pytest.mark.parametrize(("own", "age"), [(None, 3700), (60, 70)])
def test_a_full_queue_expires_its_stale_tasks_first(engine, own, age):
    limit(max_length=3, stale_after_seconds=own)
    stale, fresh = [aged(age), aged(age)], aged(50)
    task_id = put()
    assert {status(task_id) for task_id in stale} == {Status.EXPIRED}
    assert {status(fresh), status(task_id)} == {Status.QUEUED}
    put()
    with pytest.raises(QueueFull):
        put()


@pytest.mark.parametrize(
    ("own", "settings_say", "age", "is_stale"),
    [
        (None, 3600, 3601, True),
        (None, 3600, 3500, False),
        (None, 1e9, 9999, False),
        (60, 1e9, 61, True),
        (60, 9, 50, False),
    ],
)
def test_stale_tasks_make_room_under_the_default_limit_too(engine, settings, own, settings_say, age, is_stale):
    """Both defaults may come from the environment."""
    settings.TASKQUEUE = {**settings.TASKQUEUE, "ADMISSION": {"MAX_LENGTH": 1, "STALE_SECONDS": settings_say}}
    task_id = aged(age)
    limit(stale_after_seconds=own)
    assert outcome_of(from_outside) == ("stored" if is_stale else "queue_full")
    assert status(task_id) == (Status.EXPIRED if is_stale else Status.QUEUED)
    RuntimeSettings.objects.update(max_length=9)
    assert outcome_of(from_outside) == "stored", "the row of the runtime settings goes before"


def test_expired_tasks_stay_expired_if_there_is_still_no_room(engine):
    limit(max_length=2, stale_after_seconds=60)
    stale, _ = aged(70), put()
    with pytest.raises(QueueFull) as refused:
        put_many(2)
    assert (refused.value.current, status(stale)) == (1, Status.EXPIRED)


def test_no_task_expires_for_more_tasks_than_the_queue_may_ever_hold(engine):
    limit(max_length=2, stale_after_seconds=60)
    stale = aged(70)
    with pytest.raises(QueueFull):
        put_many(3)
    assert status(stale) == Status.QUEUED
    put_many(2)
    assert status(stale) == Status.EXPIRED


# -- a refusal ----------------------------------------------------------------------------------------


def test_a_refusal_is_published_with_limit_and_counts(engine):
    limit(max_length=1)
    put()
    since = last_id()
    with pytest.raises(QueueFull) as refused:
        put(user="ada", priority="high")
    assert str(refused.value).startswith(
        "The queue 'default' is full: it has 1 of at most 1 waiting tasks, and no more fit."
    )
    (event,), _ = read(since)
    assert (event.name, event.task_id, event.queue, event.user) == (EventName.REJECTED, "", "default", "ada")
    assert event.details == {"code": "queue_full", "limit": "1", "current": "1", "asked": "1"}
