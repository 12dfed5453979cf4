"""Replays of many: what they choose, how fast they go, when they stop, and what a crash leaves."""

import uuid

import pytest
from django.db import transaction

from queue_app import signals
from queue_app.core.states import Status
from queue_app.exceptions import InvalidTaskData
from queue_app.models import DeadLetter, Operation, Task
from queue_app.models.operation import OperationKind
from queue_app.services.lifecycle.actions import discard, replay
from queue_app.services.operations.request import (
    Action,
    OperationOptions,
    ReplayOptions,
    start_replay,
)
from queue_app.services.operations.run import advance, carry_out, run_operations
from queue_app.services.read.dead_letters import DeadLetterFilter, preview
from tests.support.dead_letters import kill, make_dead_letter, make_dead_letters, step
from tests.support.engine import Side, assert_index_agrees, at_once, rolled_back, status, take_ids

pytestmark = pytest.mark.both_ways

EVERYTHING = DeadLetterFilter()
UNGUARDED = ReplayOptions(stop_after_failures=0)


def progress(operation) -> tuple:
    return operation.state, operation.changed, operation.skipped


# -- which -------------------------------------------------------------------------------------------


def test_every_filter(engine, hand):
    plain = make_dead_letter(hand)
    ids = {
        "queue": make_dead_letter(hand, queue="q"),
        "type": make_dead_letter(hand, kind="b"),
        "user": make_dead_letter(hand, user="ann"),
        "text": make_dead_letter(hand, "100% Sure it is_no\\thing"),
        "late": make_dead_letter(hand),
    }
    DeadLetter.objects.filter(pk=plain.pk).update(reason="crash_loop", exception_class="shop.errors.OutOfStock")
    late = ids["late"].died_at
    for options, expected in (
        ({"queue": "q"}, ["queue"]),
        ({"task_type": "b"}, ["type"]),
        ({"user": "ann"}, ["user"]),
        ({"user": "ann", "queue": "q"}, []),
        ({"text": "100% sure"}, ["text"]),
        ({"text": "is_no\\t"}, ["text"]),
        ({"text": "100_"}, []),
        ({"died_after": late}, ["late"]),
        ({"died_before": late, "user": ""}, ["plain", "queue", "type", "text"]),
        ({"reason": "crash_loop"}, ["plain"]),
        ({"exception_class": "OutOfStock"}, ["plain"]),
        ({"exception_class": "shop.errors.OutOfStock"}, ["plain"]),
        ({"exception_class": "ofStock"}, []),
        ({"exception_class": "builtins.ValueError", "user": "ann"}, ["user"]),
        ({"ids": [plain.id, uuid.uuid4()]}, ["plain"]),
        ({"ids": []}, []),
    ):
        named = [ids.get(name, plain).id for name in expected]
        wanted = DeadLetterFilter(**options)
        assert DeadLetterFilter.from_json(wanted.as_json()) == wanted
        assert sorted(preview(wanted).sample) == sorted(named), options
        assert preview(wanted).count == len(named), options


def test_a_preview_counts_what_is_open_and_names_the_first(engine, hand):
    letters = make_dead_letters(hand, 13)
    replay(letters[0].id, by="")
    discard(letters[1].id, by="")
    found = preview(EVERYTHING)
    assert found.count == 11
    assert found.sample == [letter.id for letter in letters[2:12]]
    assert preview(EVERYTHING, 2).count == len(preview(EVERYTHING, 2).sample) == 2
    assert not Operation.objects.exists()


def test_oldest_first_in_one_go(engine, hand, history):
    letters = make_dead_letters(hand, 6)
    operation = start_replay(EVERYTHING, UNGUARDED, by="ann", reason="fixed")
    assert (operation.total, operation.by, operation.reason, operation.state) == (6, "ann", "fixed", "running")
    assert {status(letter.task_id) for letter in letters} == {Status.DEAD_LETTER}, "nothing happens in the call"
    assert run_operations() == 6
    operation.refresh_from_db()
    assert progress(operation) == ("done", 6, 0)
    assert operation.finished_at is not None
    for letter in letters:
        letter.refresh_from_db()
        assert (letter.replayed_by, letter.operation_id) == ("ann", operation.id)
    assert_index_agrees()
    assert take_ids(hand, 9) == [letter.task_id for letter in letters]
    assert run_operations() == 0


def test_a_limit(engine, hand):
    letters = make_dead_letters(hand, 4)
    operation = start_replay(EVERYTHING, ReplayOptions(limit=3, stop_after_failures=0), by="")
    assert progress(step(operation)) == ("done", 3, 0)
    assert take_ids(hand, 9) == [letter.task_id for letter in letters[:3]]


def test_nothing_to_replay(engine):
    operation = start_replay(EVERYTHING, by="")
    assert operation.total == 0
    assert progress(step(operation)) == ("done", 0, 0)


def test_more_than_one_step(engine, hand, override):
    override("queue_app.services.operations.run", STEP=3)
    make_dead_letters(hand, 8)
    operation = start_replay(EVERYTHING, UNGUARDED, by="")
    assert run_operations(steps=2) == 6
    operation.refresh_from_db()
    assert (progress(operation), operation.remaining) == (("running", 6, 0), 2)
    assert progress(step(operation)) == ("done", 8, 0)


def test_two_operations_advance_by_turns(engine, hand, override):
    override("queue_app.services.operations.run", STEP=2)
    make_dead_letters(hand, 4)
    make_dead_letters(hand, 4, queue="q")
    operations = [start_replay(DeadLetterFilter(queue=name), UNGUARDED, by="") for name in ("default", "q")]
    run_operations(steps=1)
    assert [Operation.objects.get(pk=operation.pk).changed for operation in operations] == [2, 2]


def test_tasks_that_others_changed_meanwhile_are_skipped(engine, hand):
    replayed, discarded, purged, kept = make_dead_letters(hand, 4)
    operation = start_replay(EVERYTHING, UNGUARDED, by="")
    replay(replayed.id, by="bob")
    discard(discarded.id, by="bob")
    Task.objects.filter(pk=purged.task_id).delete()
    assert progress(step(operation)) == ("done", 1, 3)
    replayed.refresh_from_db()
    assert (replayed.replayed_by, replayed.operation_id) == ("bob", None)
    assert status(kept.task_id) is Status.QUEUED


def test_tasks_that_die_later_are_left_alone(engine, hand, override):
    """Otherwise an operation would replay for ever the tasks that always fail."""
    override("queue_app.services.operations.run", STEP=1)
    first, second = make_dead_letters(hand, 2)
    operation = start_replay(EVERYTHING, UNGUARDED, by="")
    advance(operation.id)
    kill(hand, first.task_id)
    later = make_dead_letter(hand)
    run_operations()
    operation.refresh_from_db()
    assert (progress(operation), operation.failed_again) == (("done", 2, 0), 1)
    assert status(second.task_id) is Status.QUEUED
    assert {status(first.task_id), status(later.task_id)} == {Status.DEAD_LETTER}


# -- cancel, refusals ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"rate": 0}, "rate"),
        ({"limit": 0}, "limit"),
        ({"stop_after_failures": -1}, "stop_after_failures"),
    ],
)
def test_numbers_out_of_range(engine, options, field):
    with pytest.raises(InvalidTaskData) as refused:
        start_replay(EVERYTHING, ReplayOptions(**options), by="")
    assert refused.value.field == field
    assert not Operation.objects.exists()


def test_too_many_ids_or_too_long_a_reason(engine):
    with pytest.raises(InvalidTaskData, match="at most"):
        start_replay(DeadLetterFilter(ids=[uuid.uuid4()] * 10_001), by="")
    with pytest.raises(InvalidTaskData, match="limit is 200"):
        start_replay(EVERYTHING, by="", reason="x" * 201)


# -- crash points, at once --------------------------------------------------------------------------------


def test_two_runners_at_once_replay_each_once(engine, hand, history, override):
    override("queue_app.services.operations.run", STEP=3)
    letters = make_dead_letters(hand, 40)
    operation = start_replay(EVERYTHING, UNGUARDED, by="")
    handled = at_once([lambda: run_operations(steps=20)] * 4)
    assert sum(handled) == step(operation).changed == 40
    assert operation.state == "done"
    assert all(history.states(letter.task_id) == "queued executing dead_letter queued" for letter in letters)
    assert_index_agrees()


def test_a_locked_operation_is_left_to_the_other(engine, hand, eight):
    operation = start_replay(EVERYTHING, UNGUARDED, by="")
    with transaction.atomic():
        Operation.objects.select_for_update().get(pk=operation.pk)
        assert Side(run_operations).result() == 0
    assert run_operations() == 8


def test_overlapping_operations_replay_each_once(engine, hand, history, eight):
    operations = [start_replay(EVERYTHING, UNGUARDED, by=name) for name in ("ann", "bob")]
    at_once([lambda o=operation: advance(o.id) for operation in operations])
    run_operations()
    for operation in operations:
        operation.refresh_from_db()
        assert operation.state == "done"
        assert operation.changed + operation.skipped == 8
    assert sum(operation.changed for operation in operations) == 8
    assert all(history.states(letter.task_id).endswith("dead_letter queued") for letter in eight)


def test_listeners_hear_of_an_operation_once_it_is_committed(engine, eight, hear):
    replayed, ended = hear(signals.dead_letters_replayed, "count"), hear(signals.operation_ended, "operation")
    with rolled_back():
        carry_out(Action(kind=OperationKind.REPLAY), EVERYTHING, OperationOptions(), by="ann")
    assert replayed == ended == [], "nothing has happened"
    with transaction.atomic():
        carry_out(Action(kind=OperationKind.REPLAY), EVERYTHING, OperationOptions(), by="ann")
        assert replayed == ended == []
    assert (replayed, [operation.state for operation in ended]) == ([8], ["done"])
