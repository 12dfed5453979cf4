"""discard: a dead letter is closed for good; its record stays, and the task stays for its own retention."""

import uuid
from importlib import import_module

import pytest

from queue_app import signals
from queue_app.core.states import Status
from queue_app.exceptions import DeadLetterNotFound, InvalidTaskData, InvalidTransition
from queue_app.models import DeadLetter
from queue_app.services.lifecycle.actions import discard, discard_many, discard_open, replay
from queue_app.services.read.dead_letters import DeadLetterFilter, preview
from tests.support.dead_letters import make_dead_letter, make_dead_letters
from tests.support.engine import assert_index_agrees, at_once, rolled_back, status

pytestmark = pytest.mark.both_ways

MODULE = import_module("queue_app.services.lifecycle.actions")  # the package has the function under this name


def test_the_record_says_who_and_why(engine, hand, hear):
    letter = make_dead_letter(hand)
    heard = hear(signals.dead_letters_discarded, "count", "by")
    discard(str(letter.id), by="ann", reason="customer is gone")  # an id may be a text
    letter.refresh_from_db()
    assert (letter.state, letter.discarded_by, letter.discard_reason) == ("discarded", "ann", "customer is gone")
    assert letter.discarded_at > letter.died_at
    assert status(letter.task_id) is Status.DEAD_LETTER
    assert heard == [(1, "ann")]
    assert_index_agrees()


def test_refusals_say_why(engine, hand):
    with pytest.raises(DeadLetterNotFound):
        discard(uuid.uuid4(), by="")
    replayed, discarded = make_dead_letters(hand, 2)
    replay(replayed.id, by="ann")
    discard(discarded.id, by="bob")
    with pytest.raises(InvalidTransition, match="cannot be discarded: it was replayed by ann at"):
        discard(replayed.id, by="")
    with pytest.raises(InvalidTransition, match="discarded by bob"):
        discard(discarded.id, by="ann", reason="again")
    discarded.refresh_from_db()
    assert (discarded.discarded_by, discarded.discard_reason) == ("bob", "")


@pytest.mark.parametrize("reason", ["x" * 201, "two\nlines", None, 5])
def test_a_bad_reason_changes_nothing(engine, hand, reason):
    letter = make_dead_letter(hand)
    for call in (
        lambda: discard(letter.id, by="", reason=reason),
        lambda: discard_many(DeadLetterFilter(), by="", reason=reason),
    ):
        with pytest.raises(InvalidTaskData):
            call()
    assert preview(DeadLetterFilter()).count == 1


def test_one_call_discards_a_bounded_number_in_batches(engine, hand, override):
    override(MODULE, BATCH=2, MAX_AT_ONCE=4)
    make_dead_letters(hand, 8, user="ann")
    kept = make_dead_letter(hand)
    wanted = DeadLetterFilter(user="ann")
    assert discard_many(wanted, by="bob", reason="r", limit=3) == 3
    assert preview(wanted).count == 5
    assert [discard_many(wanted, by="bob", limit=limit) for limit in (10, None, None)] == [4, 1, 0]
    assert list(DeadLetter.objects.open()) == [kept]


def test_by_ids(engine, hand):
    first, second, third = make_dead_letters(hand, 3)
    replay(third.id, by="")
    assert set(discard_open([first.id, third.id, uuid.uuid4()], by="")) == {first.id}
    assert discard_many(DeadLetterFilter(ids=[second.id, first.id]), by="") == 1


def test_a_rolled_back_discard_is_silence(engine, hand):
    letter = make_dead_letter(hand)
    with rolled_back():
        discard(letter.id, by="ann")
    replay(letter.id, by="")


def test_many_at_once_discard_each_once(engine, hand):
    ids = [letter.id for letter in make_dead_letters(hand, 20)]
    done = at_once([lambda o=order: discard_open(o, by="") for order in (ids, ids[::-1], ids[7:] + ids[:7])])
    assert sum(map(len, done)) == 20
