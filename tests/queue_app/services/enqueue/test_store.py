"""enqueue and enqueue_many: stored in the caller's transaction, pushed once it has committed."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from unittest import mock

import pytest
from django.core.exceptions import ImproperlyConfigured
from django.db import connection, transaction
from django.test import override_settings

from queue_app import registry, signals
from queue_app.core.records import NewTask
from queue_app.core.states import Status
from queue_app.exceptions import IdempotencyConflict, InvalidTaskData
from queue_app.index import Index
from queue_app.models import Queue, Task, TaskPayload
from queue_app.services.enqueue.store import enqueue, enqueue_calls, enqueue_many
from queue_app.services.enqueue.validate import check_spec
from queue_app.services.lifecycle.actions import cancel
from queue_app.services.repair.reconcile import Reconciler
from queue_app.sql import database
from queue_app.tasks import task
from tests.support.engine import (
    assert_index_agrees,
    at_once,
    counted_calls,
    index_away,
    new,
    put,
    put_many,
    rolled_back,
    row,
    take_ids,
)

LATER = datetime(2030, 1, 1, tzinfo=UTC)


# -- the caller's transaction ------------------------------------------------------------


def test_a_task_is_stored_and_indexed(engine, history):
    stored = enqueue(new("a", args=[1, "x"], parameters={"k": [True, None]}, user="ann"))
    task = row(stored.id)
    assert (task.status, task.attempt, task.failures, task.user, task.queue) == ("queued", 0, 0, "ann", "default")
    assert task.created_at == task.queued_at == stored.created_at
    payload = TaskPayload.objects.get(pk=stored.id)
    assert (payload.args, payload.parameters) == ([1, "x"], {"k": [True, None]})
    assert stored.created
    assert stored.status is Status.QUEUED
    assert history.states(stored.id) == "queued"
    assert_index_agrees()


@task(queue_name="mail", priority=50, timeout=7, capabilities=["smtp"])
def declared(number): ...


@pytest.mark.parametrize("store", [enqueue, lambda given: enqueue_many([given])[0]], ids=["one", "many"])
def test_options_that_a_new_task_leaves_open_are_those_of_the_decorator(engine, store):
    name = registry.type_of(declared)
    kept = store(NewTask(task_type=name, args=[1])).spec
    assert (kept.queue, kept.band.label, kept.timeout, kept.capabilities) == ("mail", "high", 7, ("smtp",))
    given = store(NewTask(task_type=name, args=[1], queue="other", priority="low", timeout=9)).spec
    assert (given.queue, given.band.label, given.timeout) == ("other", "low", 9)
    unknown = store(NewTask(task_type="shop.no_function", args=[1])).spec
    assert (unknown.queue, unknown.band.label, unknown.timeout) == ("default", "normal", None)


@pytest.mark.parametrize("store", [put, lambda: put_many(3)], ids=["one", "many"])
def test_nothing_is_indexed_before_the_commit(engine, store):
    with transaction.atomic():
        store()
        assert engine.check().waiting == set()
    assert len(assert_index_agrees().waiting) == Task.objects.count()


MANY_WAYS = {
    "one": put,
    "many": lambda: put_many(3),
    "with keys": lambda: enqueue_many([new(idempotency_key=key) for key in "ab"]),
    "limited": lambda: enqueue(new(user="ann"), outside=True),
    "calls": lambda: enqueue_calls(check_spec(new()), [((), {}), ((), {})], len),
    "by a savepoint": transaction.atomic()(put),
}


@pytest.fixture
def manual(engine) -> Iterator[None]:
    """The caller ends transactions by itself."""
    transaction.set_autocommit(False)
    yield
    transaction.rollback()
    transaction.set_autocommit(True)


@pytest.mark.parametrize("way", MANY_WAYS)
def test_a_caller_without_autocommit_stores_once_and_notifies_when_it_turns_it_on_again(engine, manual, way):
    MANY_WAYS[way]()
    assert engine.check().waiting == set()
    transaction.commit()
    transaction.set_autocommit(True)
    assert len(assert_index_agrees().waiting) == Task.objects.count() > 0
    transaction.set_autocommit(False)


@pytest.mark.parametrize("way", MANY_WAYS)
def test_a_rollback_without_autocommit_is_silence(engine, index, manual, way):
    with counted_calls(index) as calls:
        MANY_WAYS[way]()
        transaction.rollback()
        transaction.commit()
        transaction.set_autocommit(True)
        transaction.set_autocommit(False)
    assert calls == []
    assert Task.objects.count() == 0


def test_a_caller_that_never_turns_autocommit_on_collects_no_hooks_for_ever(engine, manual, override):
    override(database, MAX_MANUAL_HOOKS=3)
    for _ in range(5):
        stored = enqueue(new())
        transaction.commit()
    assert cancel(stored.id) is Status.CANCELLED
    transaction.commit()
    assert len(connection.run_on_commit) == 3
    assert Reconciler().run_once()["missing"] == 4


@pytest.mark.parametrize("way", MANY_WAYS)
def test_without_time_zones_nothing_is_stored(engine, way):
    with override_settings(USE_TZ=False), pytest.raises(ImproperlyConfigured, match="USE_TZ"):
        MANY_WAYS[way]()
    assert Task.objects.count() == 0


@pytest.mark.parametrize("store", [put, lambda: put_many(3)], ids=["one", "many"])
def test_a_rollback_is_silence(engine, index, store):
    with counted_calls(index) as calls, rolled_back():
        store()
    assert calls == []
    assert Task.objects.count() == TaskPayload.objects.count() == 0
    assert engine.check().waiting == set()


@pytest.mark.parametrize("store", [put, lambda: put_many(3, queue="new")], ids=["one", "many"])
def test_a_rolled_back_savepoint_takes_only_its_own_tasks_along(engine, store):
    with transaction.atomic():
        before = put()
        with rolled_back():
            store()
        with transaction.atomic():
            inside = put()
        after = put()
    assert assert_index_agrees().waiting == {before, inside, after}


def test_all_tasks_of_a_transaction_are_pushed_in_one_call(engine, index):
    with counted_calls(index) as calls, transaction.atomic():
        for n in range(20):
            put("ab"[n % 2], queue=f"q{n % 3}")
    assert calls == ["push"]
    assert len(assert_index_agrees().waiting) == 20


def test_many_tasks_are_pushed_in_calls_of_500(engine, index):
    with counted_calls(index) as calls:
        put_many(1100)
    assert calls == ["push"] * 3
    assert len(engine.check().waiting) == 1100


def test_a_task_for_later_is_not_indexed(engine, index, history):
    with counted_calls(index) as calls:
        stored = enqueue(new(run_after=LATER))
        many = enqueue_many([new(run_after=LATER), new(run_after=LATER)])
    assert calls == []
    assert {stored.status, *(one.status for one in many)} == {Status.SCHEDULED}
    assert row(stored.id).queued_at is None
    assert_index_agrees()


def test_a_time_that_has_passed_means_now(engine):
    stored = enqueue(new(run_after=datetime(2020, 1, 1, tzinfo=UTC)))
    [many] = enqueue_many([new(run_after=datetime(2020, 1, 1, tzinfo=UTC))])
    assert stored.status is many.status is Status.QUEUED
    assert assert_index_agrees().waiting == {stored.id, many.id}


# -- many ------------------------------------------------------------------------------------


def test_bulk_of_nothing(engine, index):
    with counted_calls(index) as calls:
        assert enqueue_many([]) == []
    assert calls == []


def test_one_bad_task_of_many_stops_all(engine):
    with pytest.raises(InvalidTaskData):
        enqueue_many([new(), new(queue="also new"), new()])
    with pytest.raises(IdempotencyConflict):
        enqueue_many([new(), new(idempotency_key="k"), new(idempotency_key="k", args=[1])])
    assert Task.objects.count() == TaskPayload.objects.count() == 0
    assert engine.check().waiting == set()


# -- queues -----------------------------------------------------------------------------------------


def test_a_queue_first_named_in_code_is_created_with_the_defaults(engine):
    put(queue="reports")
    queue = Queue.objects.get(pk="reports")
    assert (queue.max_concurrent, queue.paused, queue.description) == (None, False, "")


def test_a_queue_whose_creation_was_rolled_back_is_created_again(engine):
    with rolled_back():
        put(queue="reports")
    assert not Queue.objects.filter(pk="reports").exists()
    put(queue="reports")
    assert Queue.objects.filter(pk="reports").exists()


def test_two_callers_may_name_new_queues_in_any_order(engine):
    names = [f"q{n}" for n in range(20)]
    at_once(
        [lambda: enqueue_many(new(queue=n) for n in names), lambda: enqueue_many(new(queue=n) for n in reversed(names))]
    )
    assert set(names) < set(Queue.objects.values_list("name", flat=True))
    assert_index_agrees()


# -- without the index, and crashes ---------------------------------------------------------------


def test_enqueueing_works_while_the_index_is_away(engine, caplog, hear):
    heard = hear(signals.index_unreachable, "operation")
    with index_away():
        first = put()
        second = put()
    assert heard == ["push"], "the second notification was held back: no caller waits for a server that does not answer"
    assert set(Task.objects.values_list("status", flat=True)) == {"queued"}
    assert Reconciler().run_once()["missing"] == 2
    assert assert_index_agrees().waiting == {first, second}


def test_a_process_that_dies_between_commit_and_push_loses_nothing(engine):
    with mock.patch.object(Index, "notify"):
        task_id = put()
    assert engine.check().waiting == set()
    assert Reconciler().run_once()["missing"] == 1
    assert assert_index_agrees().waiting == {task_id}
    assert take_ids(engine.worker(), 5) == [task_id]


def test_a_failing_notification_reaches_neither_the_caller_nor_later_hooks(engine):
    ran = []
    with index_away(), transaction.atomic():
        put()
        transaction.on_commit(lambda: ran.append(True))
    assert ran == [True]


# -- bad input -------------------------------------------------------------------------------------

BAD = {
    "no type": ({"kind": ""}, "task_type", "blank"),
    "queue with braces": ({"queue": "{a}"}, "queue", "invalid_name"),
    "priority unknown": ({"priority": "urgent"}, "priority", "unknown_priority"),
    "capabilities a text": ({"capabilities": "gpu"}, "capabilities", "list_expected"),
    "too many capabilities": ({"capabilities": [f"c{n}" for n in range(21)]}, "capabilities", "invalid"),
    "user too long": ({"user": "u" * 151}, "user", "invalid"),
    "user with NUL": ({"user": "a\x00"}, "user", "invalid_characters"),
    "retries negative": ({"max_retries": -1}, "max_retries", "out_of_range"),
    "timeout not a number": ({"timeout": float("nan")}, "timeout", "out_of_range"),
    "timeout endless": ({"timeout": float("inf")}, "timeout", "out_of_range"),
    "timeout a Decimal": ({"timeout": Decimal(5)}, "timeout", "number_expected"),
    "delay zero": ({"retry_delay": 0}, "retry_delay", "out_of_range"),
    "naive time": ({"run_after": datetime(2030, 1, 1)}, "run_after", "timezone_required"),  # noqa: DTZ001 - the case
    "time in year 9999": ({"run_after": datetime.max.replace(tzinfo=UTC)}, "run_after", "date_out_of_range"),
    "time is a date": ({"run_after": datetime(2030, 1, 1, tzinfo=UTC).date()}, "run_after", "datetime_expected"),
    "time is a number": ({"run_after": 1893456000}, "run_after", "datetime_expected"),
    "key of blanks": ({"idempotency_key": "  "}, "idempotency_key", "blank"),
    "args a text": ({"args": "abc"}, "args", "list_expected"),
    "parameters null": ({"parameters": None}, "parameters", "object_expected"),
    "parameters with bytes": ({"parameters": {"a": b"x"}}, "parameters.a", "not_json"),
    "args with a model": ({"args": [Queue()]}, "args[0]", "not_json"),
    "parameters too large": ({"parameters": {"a": "x" * 300_000}}, "parameters", "payload_too_large"),
}


@pytest.mark.parametrize("in_bulk", [False, True], ids=["one", "many"])
@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_refused_and_stores_nothing(engine, index, case, in_bulk):
    options, field, code = BAD[case]
    task = new(**({"queue": "never-made"} | options))
    with counted_calls(index) as calls, pytest.raises(InvalidTaskData) as refused:
        enqueue_many([new(queue="never-made"), task]) if in_bulk else enqueue(task)
    assert (refused.value.field, refused.value.code) == (field, code)
    assert calls == []
    assert Task.objects.count() == TaskPayload.objects.count() == 0
    assert list(Queue.objects.values_list("name", flat=True)) == ["default"]


GOOD = {
    "longest names": {"kind": "k" * 255, "queue": "q" * 100, "user": "u" * 150, "idempotency_key": "k" * 64},
    "odd names": {"kind": "a.<locals>.b [1] 'ü' %s", "queue": "0.-_", "capabilities": {"A-1.b_c"}},
    "limits": {"max_retries": 100, "timeout": 7 * 86_400, "retry_delay": 0.001},
    "a duration": {"timeout": timedelta(minutes=5)},
    "no retries": {"max_retries": 0},
    "ten years ahead": {"run_after": datetime.now(UTC) + timedelta(days=3650)},
    "20 capabilities": {"capabilities": {f"c{n}" for n in range(20)}},
    "medium": {"priority": "medium"},
    "largest integers": {"args": [2**53, -(2**53)]},
    "32 levels": {"args": [eval("[" * 31 + "]" * 31)]},  # noqa: S307
}


@pytest.mark.parametrize("case", GOOD)
def test_values_just_inside_the_limits_are_accepted(engine, case):
    put(**GOOD[case])
    enqueue_many([new(**{name: value for name, value in GOOD[case].items() if name != "idempotency_key"})])
    assert_index_agrees()
