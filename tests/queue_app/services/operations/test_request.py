"""Actions on many tasks: what they apply to, how they advance, and what a crash leaves."""

import subprocess
import sys
import uuid
from datetime import UTC, datetime, timedelta

import pytest

from queue_app.core.priorities import Band
from queue_app.core.states import Status
from queue_app.exceptions import InvalidTaskData, OperationEnded, OperationNotFound
from queue_app.models import Operation, Task
from queue_app.models.operation import OperationKind
from queue_app.services.lifecycle.finish import finish
from queue_app.services.operations.request import (
    Action,
    OperationOptions,
    ReplayOptions,
    cancel_operation,
    get_operation,
    preview_operation,
    start_operation,
    start_replay,
)
from queue_app.services.operations.run import advance, advance_for, changed_tasks, run_operations
from queue_app.services.read.dead_letters import DeadLetterFilter
from queue_app.services.read.task_filter import TaskFilter, matching
from queue_app.services.repair.reconcile import reconcile_everything
from queue_app.services.upkeep.maintenance import purge
from tests.support.dead_letters import make_dead_letter, make_dead_letters, pass_time
from tests.support.engine import assert_index_agrees, done, failed, index_away, put, put_many, row, status, take
from tests.support.faults import failing

ALL = TaskFilter()
CANCEL, REPLAY = Action(kind=OperationKind.CANCEL), Action(kind=OperationKind.REPLAY)


def move(band: Band) -> Action:
    return Action(kind=OperationKind.REPRIORITISE, band=band)


def progress(operation) -> tuple:
    operation.refresh_from_db()
    return operation.state, operation.total, operation.changed, operation.skipped


@pytest.fixture
def small_steps(override):
    override("queue_app.services.operations.run", STEP=3)


def test_every_filter(engine):
    plain = put(parameters={"order_id": 42, "customer": {"id": 7}})
    worker = engine.worker("a b c")
    ids = {
        "queue": put(queue="q"),
        "type": put("b"),
        "user": put(user="ann", parameters={"order_id": "42"}),
        "band": put(priority=Band.LOW),
        "gpu": put(capabilities=("gpu", "fast")),
        "later": put(run_after=datetime.now(UTC) + timedelta(hours=1)),
    }
    ran = put("c", priority=Band.CRITICAL, max_retries=0)
    [task] = take(worker)

    finish([failed(task, "Disk is 100% FULL")])
    Task.objects.filter(pk=ids["band"]).update(queued_at=datetime.now(UTC) - timedelta(seconds=700))
    ids |= {"plain": plain, "ran": ran}
    finished_at = row(ran).finished_at
    for options, expected in (
        ({"ids": [plain, uuid.uuid4()]}, "plain"),
        ({"ids": []}, ""),
        ({"statuses": ["pending"]}, "plain queue type user band gpu later"),
        ({"statuses": ["scheduled", "dead_letter"]}, "later ran"),
        ({"bands": [Band.LOW, Band.CRITICAL]}, "band ran"),
        ({"effective_bands": [Band.NORMAL], "bands": [Band.LOW]}, "band"),
        ({"effective_bands": [Band.LOW]}, ""),
        ({"queues": ["q"]}, "queue"),
        ({"queues": ["q", "none"]}, "queue"),
        ({"task_types": ["b", "c"]}, "type ran"),
        ({"user": "ann"}, "user"),
        ({"worker_id": worker.id}, "ran"),
        ({"capabilities": ["gpu"]}, "gpu"),
        ({"capabilities": ["gpu", "slow"]}, ""),
        ({"finished_after": finished_at}, "ran"),
        ({"finished_before": finished_at}, ""),
        ({"created_after": row(ran).created_at}, "ran"),
        ({"run_after": datetime.now(UTC)}, "later"),
        ({"error": "100% full"}, "ran"),
        ({"error": "valueerror"}, "ran"),
        ({"error": "1__%"}, ""),
        ({"parameters": [[{"order_id": 42}]]}, "plain"),
        ({"parameters": [[{"order_id": 42}, {"order_id": "42"}]]}, "plain user"),
        ({"parameters": [[{"order_id": 42}, {"order_id": "42"}], [{"customer": {"id": 7}}]]}, "plain"),
    ):
        wanted = TaskFilter(**options)
        assert TaskFilter.from_json(wanted.as_json()) == wanted
        found = set(matching(wanted).values_list("id", flat=True))
        assert found == {ids[name] for name in expected.split()}, options


def test_cancelling_many_leaves_what_has_ended_and_what_comes_later(engine, small_steps):
    worker = engine.worker()
    ended, running = put(), put()

    first, second = take(worker, 2)
    finish([done(first)])
    waiting = put_many(5)
    assert preview_operation(CANCEL, ALL).count == 6
    assert preview_operation(CANCEL, ALL).sample[0] == running
    operation = start_operation(CANCEL, ALL, by="ann", reason="a mistake")
    later = put()
    assert advance(operation.id) == 3
    assert progress(operation) == ("running", 6, 3, 0)
    assert operation.remaining == 3
    run_operations()
    assert progress(operation) == ("done", 6, 6, 0)
    assert run_operations() == 0
    assert (status(ended), status(running), status(later)) == (Status.COMPLETED, Status.EXECUTING, Status.QUEUED)
    assert row(second.id).cancel_requested_at is not None
    assert {status(task_id) for task_id in waiting} == {Status.CANCELLED}
    assert_index_agrees()


def test_reprioritising_many(engine):
    ids = put_many(4)
    put(priority=Band.HIGH)  # is there already
    operation = start_operation(move(Band.HIGH), ALL, by="ann")
    [claimed] = take(engine.worker("a"))  # the one of high
    assert claimed.id not in ids
    Task.objects.filter(pk=ids[0]).delete()
    assert advance_for(operation.id, 5).state == "done"
    assert progress(operation) == ("done", 4, 3, 1)
    assert {row(task_id).priority for task_id in ids[1:]} == {Band.HIGH}
    for options in ({"kind": OperationKind.REPRIORITISE}, {"kind": OperationKind.CANCEL, "band": Band.LOW}):
        with pytest.raises(InvalidTaskData):
            Action(**options)


def test_replaying_many(engine):
    hand = engine.worker("a b")
    letters = [make_dead_letter(hand), make_dead_letter(hand, user="ann")]
    operation = start_operation(REPLAY, TaskFilter(user="ann"), by="bob")
    run_operations()
    assert progress(operation) == ("done", 1, 1, 0)
    letters[1].refresh_from_db()
    assert (letters[1].replayed_by, letters[1].operation_id) == ("bob", operation.id)
    assert status(letters[1].task_id) is Status.QUEUED
    assert status(letters[0].task_id) is Status.DEAD_LETTER
    assert_index_agrees()


def test_a_crash_in_a_step_leaves_nothing_of_it_and_others_go_on(engine, small_steps, monkeypatch):
    put_many(4)
    broken, sound = start_operation(CANCEL, TaskFilter(queues=["default"]), by=""), None
    Operation.objects.filter(pk=broken.pk).update(filter={"no_such_field": 1})
    sound = start_operation(CANCEL, ALL, by="")
    with pytest.raises(TypeError):
        run_operations()
    assert progress(sound) == ("done", 4, 4, 0)
    Operation.objects.filter(pk=broken.pk).delete()
    again = start_operation(move(Band.LOW), TaskFilter(ids=put_many(4)), by="")
    with failing(Operation, "save", ZeroDivisionError), pytest.raises(ZeroDivisionError):
        advance(again.id)
    assert not Task.objects.filter(priority=Band.LOW).exists()
    run_operations()
    assert progress(again) == ("done", 4, 4, 0)


@pytest.mark.parametrize("of", ["tasks", "dead letters"])
def test_a_process_killed_at_any_point_of_a_step_damages_nothing(engine, history, process_env, of):
    """Twice before the commit, between commit and index, and between two steps; then another process continues."""
    hand = engine.worker("a b")
    letters = make_dead_letters(hand, 8)
    if of == "tasks":
        operation = start_operation(REPLAY, ALL, by="ann")
    else:
        operation = start_replay(DeadLetterFilter(), ReplayOptions(stop_after_failures=0), by="ann")

    def kill(*points: str) -> None:
        subprocess.run(
            [sys.executable, "-m", "tests.queue_app.services.operations.killed", str(operation.id), *points],
            env=process_env, check=True, timeout=120,
        )  # fmt: skip

    kill("changed", "noted", "committed", "between")
    assert progress(operation) == ("running", 8, 4, 0)
    states = [status(letter.task_id) for letter in letters]
    assert states == [Status.QUEUED] * 4 + [Status.DEAD_LETTER] * 4
    run_operations()
    assert progress(operation) == ("done", 8, 8, 0)
    reconcile_everything()
    assert_index_agrees()
    assert all(history.states(letter.task_id) == "queued executing dead_letter queued" for letter in letters)


def test_a_rate_and_a_limit(engine):
    put_many(5)
    with pytest.raises(InvalidTaskData, match="only with replay"):
        start_operation(CANCEL, ALL, OperationOptions(stop_after_failures=1), by="")
    with pytest.raises(InvalidTaskData, match="only be replayed"):
        start_operation(CANCEL, DeadLetterFilter(), by="")
    operation = start_operation(CANCEL, ALL, OperationOptions(rate=0.5, limit=2), by="")
    assert preview_operation(CANCEL, ALL, OperationOptions(limit=2)).count == operation.total == 2
    assert advance_for(operation.id, 5).changed == 1, "the first at once, the others at its pace"
    pass_time(operation, 2)
    assert advance_for(operation.id, 5).state == "done"
    assert progress(operation) == ("done", 2, 2, 0)
    assert matching(TaskFilter(statuses=["queued"])).count() == 3


def test_the_newest_first(engine, small_steps):
    tasks = put_many(5)
    newest = OperationOptions(limit=3, order="newest")
    assert preview_operation(CANCEL, ALL, newest).sample == tasks[:1:-1]
    operation = advance_for(start_operation(CANCEL, ALL, newest, by="").id, 5)
    assert progress(operation) == ("done", 3, 3, 0)
    assert [status(task_id) for task_id in tasks] == ["queued"] * 2 + ["cancelled"] * 3
    assert changed_tasks(operation) == [str(task_id) for task_id in reversed(tasks[2:])]
    with pytest.raises(InvalidTaskData, match="oldest or newest"):
        start_operation(CANCEL, ALL, OperationOptions(order="random"), by="")


def test_the_latest_deaths_are_replayed_first(engine):
    letters = make_dead_letters(engine.worker("a b"), 3)
    options = ReplayOptions(limit=2, order="newest", stop_after_failures=0)
    operation = advance_for(start_replay(DeadLetterFilter(), options, by="").id, 5)
    assert [status(letter.task_id) for letter in letters] == ["dead_letter", "queued", "queued"]
    assert set(changed_tasks(operation)) == {letter.task_id for letter in letters[1:]}


def test_without_the_index_the_rows_change_and_the_reconciler_follows(engine):
    put_many(3)
    operation = start_operation(CANCEL, ALL, by="")
    with index_away():
        run_operations()
    assert progress(operation) == ("done", 3, 3, 0)
    reconcile_everything()
    assert take(engine.worker()) == []


def test_cancelling_the_operation_ends_it(engine, small_steps):
    put_many(5)
    operation = start_operation(CANCEL, ALL, by="ann")
    advance(operation.id)
    assert cancel_operation(operation.id, by="bob").ended_by == "bob"
    assert run_operations() == 0
    assert progress(operation) == ("cancelled", 5, 3, 0)
    with pytest.raises(OperationEnded):
        cancel_operation(operation.id, by="bob")
    Operation.objects.filter(pk=operation.pk).update(finished_at=datetime.now(UTC) - timedelta(days=365))
    purge()
    for missing in (get_operation, lambda found: cancel_operation(found, by="")):
        with pytest.raises(OperationNotFound):
            missing(operation.id)
