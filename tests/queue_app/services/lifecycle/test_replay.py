"""replay: a dead task is queued again once, with a fresh retry budget; the record names the person."""

import uuid
from datetime import UTC, datetime, timedelta
from functools import partial

import pytest
from django.db import transaction

from queue_app import signals
from queue_app.backend.results import load_result
from queue_app.core.redaction import MASK
from queue_app.core.states import Status
from queue_app.exceptions import DeadLetterNotFound, InvalidTaskData, InvalidTransition
from queue_app.models import DeadLetter, Task, TaskAttempt, TaskPayload
from queue_app.services.lifecycle.actions import discard, replay, replay_open
from queue_app.services.lifecycle.finish import finish
from queue_app.services.repair.reconcile import Reconciler
from tests.support.dead_letters import kill, letter_of, make_dead_letter, make_dead_letters
from tests.support.engine import (
    assert_index_agrees,
    at_once,
    done,
    failed,
    held_up,
    index_away,
    put,
    rolled_back,
    row,
    status,
    take,
    take_ids,
)

pytestmark = pytest.mark.both_ways


@pytest.mark.both_ways(False)
def test_the_task_is_queued_again_with_a_fresh_budget(engine, hand, history):
    letter = make_dead_letter(hand, max_retries=1)
    before = row(letter.task_id)
    assert (before.status, before.failures, before.attempt) == ("dead_letter", 2, 2)
    ref = replay(letter.id, by="ann")
    after = row(letter.task_id)
    assert (ref.id, ref.queued_at) == (after.id, after.queued_at)
    assert (after.status, after.failures, after.crashes, after.attempt) == ("queued", 0, 0, 2)
    assert after.finished_at is None
    assert after.queued_at > before.finished_at
    letter.refresh_from_db()
    assert (letter.replayed_by, letter.parameters_edited, letter.operation_id) == ("ann", False, None)
    assert abs(letter.replayed_at - after.queued_at) < timedelta(seconds=1)
    assert assert_index_agrees().waiting == {letter.task_id}
    [task] = take(hand)
    assert (task.attempt, task.failures) == (3, 0)
    assert history.states(letter.task_id).endswith("dead_letter queued executing")


def test_a_replay_resets_the_columns_of_the_last_run(engine, hand):
    letter = make_dead_letter(hand, max_retries=3)
    later = datetime.now(UTC) + timedelta(hours=1)
    Task.objects.update(crashes=3, cancel_requested_at=later, run_after=later, deadline=later)
    replay(letter.id, by="ann")
    after = row(letter.task_id)
    assert (after.crashes, after.failures) == (0, 0)
    assert (after.run_after, after.deadline, after.cancel_requested_at) == (None, None, None)
    [task] = take(hand)
    finish([done(task)])
    assert status(letter.task_id) is Status.COMPLETED, "no old wish to cancel it stands"


def test_it_queues_behind_waiting_tasks(engine, hand):
    letter = make_dead_letter(hand)
    first = put()
    replay(str(letter.id), by="")  # an id may be a text
    last = put()
    assert take_ids(hand, 3) == [first, letter.task_id, last]


def test_it_can_die_again_and_each_death_has_its_record(engine, hand):
    letter = make_dead_letter(hand, "first death", max_retries=1)
    replay(letter.id, by="ann")
    kill(hand, letter.task_id, "second death")
    second = letter_of(letter.task_id)
    assert second.id != letter.id
    assert (second.message, second.attempts, second.replayed_at) == ("second death", 4, None)
    assert row(letter.task_id).failures == 2, "the whole budget once more"
    letter.refresh_from_db()
    assert (letter.message, letter.replayed_by) == ("first death", "ann")
    with pytest.raises(InvalidTransition):
        replay(letter.id, by="bob")
    replay(second.id, by="bob")
    assert status(letter.task_id) is Status.QUEUED


def test_history_is_kept(engine, hand):
    letter = make_dead_letter(hand, "one", max_retries=1)
    replay(letter.id, by="ann")
    waiting = load_result(letter.task_id, "default")
    assert (status(letter.task_id), len(waiting.errors), waiting.finished_at) == ("queued", 2, None)
    [task] = take(hand)
    finish([done(task, '"at last"')])
    result = load_result(letter.task_id, "default")
    assert (status(letter.task_id), result.return_value) == ("completed", "at last")
    assert [error.exception_class for error in result.errors] == [ValueError, ValueError]
    assert result.worker_ids == [str(hand.id)] * 3
    assert result.started_at < result.last_attempted_at
    assert list(TaskAttempt.objects.order_by("attempt").values_list("attempt", flat=True)) == [1, 2]


# -- other parameters ---------------------------------------------------------------------------------


def test_edited_parameters(engine, hand):
    letter = make_dead_letter(hand, parameters={"n": 1, "password": "swordfish"}, args=[7])
    replay(letter.id, by="ann", parameters={"n": 2, "password": MASK, "x": [None]})
    payload = TaskPayload.objects.get(pk=letter.task_id)
    assert payload.parameters == {"n": 2, "password": "swordfish", "x": [None]}
    assert payload.args == [7]
    letter.refresh_from_db()
    assert letter.parameters_edited
    assert '"n": 2' in take(hand)[0].parameters


@pytest.mark.parametrize("same", [{"n": 1, "password": MASK}, {"password": "swordfish", "n": 1}])
def test_parameters_that_are_the_same_are_not_edited(engine, hand, same):
    letter = make_dead_letter(hand, parameters={"n": 1, "password": "swordfish"})
    replay(letter.id, by="ann", parameters=same)
    letter.refresh_from_db()
    assert (letter.parameters_edited, letter.replayed_by) == (False, "ann")
    assert TaskPayload.objects.get().parameters == {"n": 1, "password": "swordfish"}


@pytest.mark.parametrize(
    ("bad", "code"),
    [
        ({"other": MASK}, "masked_value"),
        ({1: 2}, "not_json"),
    ],
)
def test_bad_parameters_change_nothing(engine, hand, bad, code):
    letter = make_dead_letter(hand, parameters={"n": 1, "password": "swordfish"})
    with pytest.raises(InvalidTaskData) as refused:
        replay(letter.id, by="ann", parameters=bad)
    assert refused.value.code == code
    assert status(letter.task_id) is Status.DEAD_LETTER
    letter.refresh_from_db()
    assert (letter.state, letter.parameters_edited) == ("open", False)
    assert TaskPayload.objects.get().parameters == {"n": 1, "password": "swordfish"}


# -- what cannot be replayed ---------------------------------------------------------------------------


@pytest.mark.parametrize("parameters", [None, {"n": 1}])
def test_refusals_say_why(engine, hand, parameters):
    with pytest.raises(DeadLetterNotFound):
        replay(uuid.uuid4(), by="", parameters=parameters)
    replayed, discarded, purged = make_dead_letters(hand, 3)
    replay(replayed.id, by="ann")
    discard(discarded.id, by="bob", reason="old")
    Task.objects.filter(pk=purged.task_id).delete()
    for letter, why, state in (
        (replayed, "replayed by ann at", "queued"),
        (discarded, "discarded by bob at", "dead_letter"),
        (purged, "its task was purged", "purged"),
    ):
        with pytest.raises(InvalidTransition, match=why) as refused:
            replay(letter.id, by="", parameters=parameters)
        assert refused.value.status == state
    assert status(discarded.task_id) is Status.DEAD_LETTER
    assert DeadLetter.objects.filter(replayed_at=None).count() == 2


def test_some_of_many(engine, hand, hear):
    first, gone, second = make_dead_letters(hand, 3)
    discard(gone.id, by="")
    heard = hear(signals.dead_letters_replayed, "count", "by")
    moved = replay_open([second.id, gone.id, uuid.uuid4(), first.id, first.id], by="ann")
    assert [letter_id for letter_id, _ in moved] == [first.id, second.id], "in the order of their deaths"
    assert take_ids(hand, 3) == [first.task_id, second.task_id]
    assert heard == [(2, "ann")]


# -- crash points -----------------------------------------------------------------------------------


def test_a_rolled_back_replay_is_silence(engine, hand):
    letter = make_dead_letter(hand, parameters={"n": 1})
    with rolled_back():
        replay(letter.id, by="ann", parameters={"n": 2})
    assert status(letter.task_id) is Status.DEAD_LETTER
    letter.refresh_from_db()
    assert letter.state == "open"
    assert TaskPayload.objects.get().parameters == {"n": 1}
    assert assert_index_agrees().waiting == set()


@pytest.mark.both_ways(False)
@pytest.mark.parametrize("count", [1, 3])
def test_a_lost_push_is_repaired(engine, hand, count):
    letters = make_dead_letters(hand, count)
    with index_away("push"):
        assert len(replay_open([letter.id for letter in letters], by="")) == count
    assert engine.check().waiting == set()
    assert Reconciler().run_once()["missing"] == count
    assert assert_index_agrees().waiting == {letter.task_id for letter in letters}


@pytest.mark.both_ways(False)
def test_a_replay_does_not_wait_for_a_slot_that_was_never_freed(engine, hand, monkeypatch):
    """The worker died between the commit of the failure and the release."""
    put(max_retries=0)
    [task] = take(hand)
    with index_away("release"):
        finish([failed(task)])
    replay(letter_of(task.id).id, by="")
    assert engine.check().waiting == set(), "what holds a lease is not pushed"
    Reconciler().run_once()
    assert assert_index_agrees().waiting == {task.id}


# -- at once -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("first", "second"),
    [(replay, replay), (replay, partial(replay, parameters={"n": 2})), (replay, discard), (discard, replay)],
)
def test_of_two_decisions_at_once_the_second_waits_and_is_refused(engine, hand, history, first, second):
    letter = make_dead_letter(hand)
    with transaction.atomic():
        first(letter.id, by="first")
        side = held_up(lambda: second(letter.id, by="second"))
    with pytest.raises(InvalidTransition, match="by first"):
        side.result()
    assert history.states(letter.task_id).count("queued") == (2 if first is replay else 1)


def test_replays_of_many_at_once_move_each_once_and_do_not_block_each_other(engine, hand, history):
    letters = make_dead_letters(hand, 30)
    ids = [letter.id for letter in letters]
    orders = [ids, ids[::-1], ids[10:] + ids[:10], sorted(ids)]
    moved = at_once([lambda o=order: replay_open(o, by="") for order in orders])
    assert sum(map(len, moved)) == 30
    assert all(history.states(letter.task_id).endswith("dead_letter queued") for letter in letters)
    assert_index_agrees()
