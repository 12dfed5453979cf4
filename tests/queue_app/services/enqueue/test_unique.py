"""Unique tasks: while one stands, no second one like it is stored."""

import json
import uuid
from datetime import UTC, datetime, timedelta

import pytest
from django.db import connection, transaction
from django.db.models import F
from django.tasks import default_task_backend
from django.tasks.exceptions import InvalidTask

from queue_app import Unique, task
from queue_app.core.records import NewTask
from queue_app.core.states import Status
from queue_app.exceptions import InvalidTaskData, IsolationTooStrict, UniqueConflict
from queue_app.models import StepResult, Task, TaskPayload
from queue_app.models.worker import StepKind
from queue_app.services.enqueue.store import enqueue, enqueue_many, submit, submit_many
from queue_app.services.lifecycle.actions import cancel, cancel_many, retry, run_now
from queue_app.services.lifecycle.finish import finish
from queue_app.sql import admission
from tests.support.engine import (
    Side,
    assert_index_agrees,
    at_once,
    done,
    failed,
    held_up,
    new,
    put_many,
    row,
    status,
    take,
    take_ids,
)


@task(unique=Unique(by=["order"]))
def ship(order: int, note: str = "") -> None: ...


@task(unique=Unique(by=["order"], on_conflict="latest"))
def sync(order: int, version: int = 0) -> None: ...


@task(unique=True)
def tidy(*, deep: bool = False) -> None: ...


SHIP, SYNC = f"{__name__}.ship", f"{__name__}.sync"


def unique(kind: str = "a", *, parameters: dict | None = None, **rule) -> NewTask:
    options = {
        name: rule.pop(name)
        for name in ("user", "queue", "run_after", "args", "priority", "concurrency_key")
        if name in rule
    }
    return new(kind, parameters=parameters or {}, unique=Unique(**rule), **options)


def parameters_of(task_id: uuid.UUID) -> dict:
    return TaskPayload.objects.get(pk=task_id).parameters


def let_pass(seconds: float) -> None:
    """Move all tasks into the past."""
    past = {name: F(name) - timedelta(seconds=seconds) for name in ("created_at", "finished_at")}
    Task.objects.update(**past)


# -- which calls are the same ----------------------------------------------------------------


def test_the_same_arguments_are_stored_once(engine):
    first = enqueue(unique(parameters={"a": 1, "b": 2}))
    again = enqueue(unique(parameters={"b": 2, "a": 1}))
    assert (again.id, again.created, again.status) == (first.id, False, Status.QUEUED)
    assert enqueue(unique(parameters={"a": 1})).created
    assert enqueue(unique("b", parameters={"a": 1, "b": 2})).created
    assert enqueue(new(parameters={"a": 1, "b": 2})).created  # a plain task asks for no rule
    assert Task.objects.count() == 4


def test_arguments_are_compared_by_the_names_of_parameters(engine):
    first = ship.enqueue(7, note="first")
    assert ship.enqueue(order=7).id == first.id
    assert ship.enqueue(8).id != first.id
    assert first.is_finished is False


def test_a_default_counts_as_given(engine):
    assert tidy.enqueue().id == tidy.enqueue(deep=False).id != tidy.enqueue(deep=True).id


@pytest.mark.parametrize(
    ("rule", "other", "same"),
    [
        ({}, {"user": "bob"}, True),
        ({"per_user": True}, {"user": "bob"}, False),
        ({"per_queue": True}, {"user": "bob"}, True),
        ({"per_queue": True}, {"queue": "other"}, False),
    ],
)
def test_users_and_queues_may_be_apart(engine, rule, other, same):
    of_ann = {"user": "ann"} | rule
    first = enqueue(unique(**of_ann))
    assert (enqueue(unique(**of_ann | other)).id == first.id) is same


# -- how long a task stands ------------------------------------------------------------------


def test_a_task_stands_until_it_ends(engine):
    worker = engine.worker()
    first = enqueue(unique())
    (claimed,) = take(worker)
    assert (enqueue(unique()).id, enqueue(unique()).status) == (first.id, Status.EXECUTING)
    finish([failed(claimed)])
    assert enqueue(unique()).status is Status.SCHEDULED  # it will be retried
    run_now(first.id)
    (claimed,) = take(worker)
    finish([done(claimed)])
    assert enqueue(unique()).created


@pytest.mark.parametrize("end", ["failed", "cancelled"])
def test_an_end_without_success_frees_the_key(engine, end):
    first = enqueue(unique(within=3600))
    if end == "failed":
        finish([failed(take(engine.worker())[0], retriable=False)])
    else:
        cancel(first.id)
    assert status(first.id) == end
    assert enqueue(unique(within=3600)).created


def test_a_task_stands_within_a_period_even_when_it_has_succeeded(engine):
    first = enqueue(unique(within=timedelta(hours=1)))
    finish([done(take(engine.worker())[0])])
    assert enqueue(unique(within=timedelta(hours=1))).id == first.id
    let_pass(3601)
    assert enqueue(unique(within=timedelta(hours=1))).created


def test_only_the_period_may_count(engine):
    first = enqueue(unique(within=60, states=[]))
    let_pass(30)
    assert enqueue(unique(within=60, states=[])).id == first.id
    let_pass(31)
    assert enqueue(unique(within=60, states=[])).created


def test_a_task_may_stand_only_until_it_starts(engine):
    rule = {"states": ["queued", "scheduled"]}
    first = enqueue(unique(**rule))
    take(engine.worker())
    second = enqueue(unique(**rule))
    assert second.created
    assert enqueue(unique(**rule)).id == second.id != first.id


def test_the_look_up_does_not_read_the_history_of_a_key(engine):
    ended = put_many(300)
    cancel_many(ended)
    Task.objects.filter(pk__in=ended).update(unique_key="k" * 32)
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE queue_app_task")
        cursor.execute("EXPLAIN ANALYZE " + admission._STANDING, [["k" * 32], ["queued"], None, None, None])
        plan = "\n".join(line for (line,) in cursor.fetchall())
    assert "Index Scan using taskqueue_unique" in plan
    assert "Seq Scan on queue_app_task " not in plan
    assert "rows=300" not in plan


# -- what a repetition does ------------------------------------------------------------------


def test_raise_names_the_task_that_stands(engine):
    first = enqueue(unique(on_conflict="raise"))
    with pytest.raises(UniqueConflict, match=f"one for the same arguments .* The task {first.id} is queued") as told:
        enqueue(unique(on_conflict="raise"))
    assert (told.value.task_id, told.value.status) == (first.id, "queued")


def test_replace_gives_the_waiting_task_the_new_arguments_in_its_place(engine):
    rule = {"on_conflict": "replace", "by": ()}
    first = enqueue(unique(parameters={"n": 1}, **rule))
    queued_at = row(first.id).queued_at
    put_many(2)
    assert enqueue(unique(parameters={"n": 2}, **rule)).id == first.id
    (claimed,) = take(engine.worker())
    assert (claimed.id, json.loads(claimed.parameters), claimed.queued_at) == (first.id, {"n": 2}, queued_at)
    third = enqueue(unique(parameters={"n": 3}, **rule))  # the first one runs and cannot change
    assert third.created
    assert_index_agrees()


def test_a_claim_that_waits_for_the_replacement_does_not_run_old_arguments(engine):
    """The claim's statement began before the commit, so it read the old arguments. The next round reads anew."""
    rule = {"on_conflict": "replace", "by": ()}
    first = enqueue(unique(parameters={"n": 1}, **rule))
    worker = engine.worker()
    with transaction.atomic():
        enqueue(unique(parameters={"n": 2}, **rule))
        claiming = held_up(lambda: take(worker))
    granted = claiming.result()
    assert_index_agrees()
    assert [(one.id, json.loads(one.parameters)) for one in granted] == [(first.id, {"n": 2})]


def test_a_task_that_starts_meanwhile_is_not_replaced(engine, before):
    rule = {"on_conflict": "replace", "by": ()}
    first = enqueue(unique(parameters={"n": 1}, **rule))
    worker = engine.worker()
    before(admission, "lock_existing", lambda: Side(lambda: take(worker)).result())
    second = enqueue(unique(parameters={"n": 2}, **rule))
    assert second.created
    assert (parameters_of(first.id), parameters_of(second.id)) == ({"n": 1}, {"n": 2})


def test_a_task_that_waits_between_its_steps_is_not_replaced(engine):
    rule = {"on_conflict": "replace", "by": ()}
    first = enqueue(unique(parameters={"n": 1}, **rule))
    now = datetime.now(UTC)
    StepResult.objects.create(
        task_id=first.id, name="a", position=1, kind=StepKind.STEP, attempt=1, stored_at=now, done_at=now
    )
    assert enqueue(unique(parameters={"n": 2}, **rule)).created
    assert enqueue(unique(parameters={"n": 1}, by=(), states=["executing"])).id == first.id


def test_debounce_lets_the_task_wait_anew(engine):
    first = enqueue(unique(debounce=60, by=(), parameters={"n": 1}))
    before = row(first.id)
    assert before.status == Status.SCHEDULED
    assert 55 < (before.run_after - before.created_at).total_seconds() <= 61
    again = enqueue(unique(debounce=60, by=(), parameters={"n": 2}))
    assert (again.id, again.status, parameters_of(first.id)) == (first.id, Status.SCHEDULED, {"n": 2})
    assert row(first.id).run_after > before.run_after
    run_now(first.id)
    assert enqueue(unique(debounce=60, by=())).status is Status.SCHEDULED  # also one that is queued
    assert row(first.id).status == Status.SCHEDULED
    assert_index_agrees()


def test_debounce_has_an_end(engine):
    first = enqueue(unique(debounce=60, max_wait=90, by=()))
    let_pass(80)
    enqueue(unique(debounce=60, max_wait=90, by=()))
    found = row(first.id)
    assert (found.run_after - found.created_at).total_seconds() == pytest.approx(90, abs=1)


def test_latest_lets_one_run_and_one_wait_with_the_newest_arguments(engine):
    worker = engine.worker(SYNC)
    running = sync.enqueue(1, version=1)
    (first,) = take(worker)
    assert str(first.id) == running.id
    waiting = sync.enqueue(1, version=2)
    assert sync.enqueue(1, version=3).id == waiting.id != running.id
    other = sync.enqueue(2)
    assert [str(found) for found in take_ids(worker, 4)] == [other.id]  # the same order waits for the running one
    finish([done(first)])
    (second,) = take(worker, 4)
    assert (str(second.id), json.loads(second.parameters)) == (waiting.id, {"version": 3})


# -- callers ---------------------------------------------------------------------------------


def test_a_caller_waits_for_the_transaction_of_another(engine):
    with transaction.atomic():
        first = enqueue(unique())
        second = held_up(lambda: enqueue(unique()))
    assert (second.result().id, second.result().created) == (first.id, False)


def test_an_old_snapshot_is_refused(engine):
    with transaction.atomic():
        with connection.cursor() as cursor:
            cursor.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        with pytest.raises(IsolationTooStrict, match="READ COMMITTED"):
            enqueue(unique())


def test_staff_may_retry_a_task_while_another_stands(engine):
    first = enqueue(unique())
    finish([failed(take(engine.worker())[0], retriable=False)])
    second = enqueue(unique())
    retry(first.id)
    assert status(first.id) == status(second.id) == Status.QUEUED


def test_a_submission_by_name_follows_the_rule_of_the_function(engine):
    first = submit(NewTask(task_type=SHIP, parameters={"order": 1}, user="ann"))
    again = submit(NewTask(task_type=SHIP, parameters={"order": 1, "note": "x"}, user="ann"))
    assert (again.id, again.replayed, again.status) == (first.id, True, Status.QUEUED)
    assert submit_many([NewTask(task_type=SHIP, parameters={"order": 1}, user="ann")])[0].id == first.id


@pytest.mark.parametrize("kind", [SHIP, SYNC])
def test_a_submission_neither_sees_nor_changes_the_task_of_another_user(engine, kind):
    first = submit(NewTask(task_type=kind, parameters={"order": 1}, user="ann"))
    with pytest.raises(UniqueConflict) as told:
        submit(NewTask(task_type=kind, parameters={"order": 1}, user="bob"))
    assert str(first.id) not in str(told.value)
    assert told.value.task_id is None
    assert parameters_of(first.id) == {"order": 1}


# -- bad rules -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rule", "words"),
    [
        (Unique(), "one for the same arguments until it has ended"),
        (Unique(by=()), "one of this type until it has ended"),
        (Unique(by=["order"], per_user=True), "one for the same user, order until it has ended"),
    ],
)
def test_a_rule_has_words(rule, words):
    assert rule.words == words


def test_latest_needs_its_own_concurrency_key(engine):
    with pytest.raises(InvalidTask, match="leave concurrency_key out"):
        sync.using(concurrency_key="customer:1")
    with pytest.raises(InvalidTaskData, match="leave concurrency_key out"):
        enqueue(unique(on_conflict="latest", by=(), concurrency_key="customer:1"))


def test_a_copy_may_drop_the_rule(engine):
    assert ship.using(unique=None).enqueue(1).id != ship.using(unique=None).enqueue(1).id


# -- in bulk -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("limit", [admission.MANY, 3])
def test_many_callers_in_bulk_store_each_key_once(engine, override, limit):
    override(admission, MANY=limit)

    def store(start: int):
        return enqueue_many([unique(parameters={"n": (start + n) % 12}) for n in range(12)])

    answers = at_once(
        [*[lambda start=start: store(start) for start in range(10)], lambda: [enqueue(unique(parameters={"n": 5}))]]
    )
    assert Task.objects.count() == 12
    assert len({item.id for answer in answers for item in answer}) == 12
    assert sum(item.created for answer in answers for item in answer) == 12


def test_bulk_returns_the_task_that_stands_for_each_call(engine):
    first = ship.enqueue(1)
    made = default_task_backend.enqueue_many(ship, [((order,), {}) for order in (1, 2, 2, 3)])
    assert made[0].id == first.id
    assert made[1].id == made[2].id != made[3].id
    assert Task.objects.count() == 3


def test_in_bulk_the_last_arguments_replace_the_earlier_ones(engine):
    first, second = enqueue_many([unique(on_conflict="replace", by=(), parameters={"n": n}) for n in (1, 2)])
    assert (first.id, first.created, second.created) == (second.id, True, False)
    assert parameters_of(first.id) == {"n": 2}


def test_bulk_with_a_conflict_stores_nothing(engine):
    rule = {"on_conflict": "raise"}
    with pytest.raises(UniqueConflict, match="Two tasks of this call"):
        enqueue_many([new("b"), unique(**rule), unique(**rule)])
    assert Task.objects.count() == 0


def test_unique_and_plain_tasks_keep_their_order_in_bulk(engine):
    stored = enqueue_many([new(parameters={"n": 0}), unique(parameters={"n": 1}), new(parameters={"n": 2})])
    assert [parameters_of(item.id)["n"] for item in stored] == [0, 1, 2]
    assert len(take_ids(engine.worker(), 3)) == 3
