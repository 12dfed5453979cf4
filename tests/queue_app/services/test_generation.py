"""condemn: an index that cannot heal by itself is built again, with a bound."""

from datetime import timedelta

import pytest
from django.db import transaction
from django.db.models import F

from queue_app import signals
from queue_app.exceptions import IndexNotReady
from queue_app.models import IndexGeneration
from queue_app.services.notify.index import condemn
from queue_app.services.repair.rebuild import rebuild_if_needed
from queue_app.sql import snapshot
from tests.support.engine import assert_index_agrees, put, take, take_ids


def shift(seconds, *columns):
    """Let the last condemnation have been earlier, and what the columns name."""
    earlier = timedelta(seconds=seconds)
    IndexGeneration.objects.update(**{column: F(column) - earlier for column in ("condemned_at", *columns)})


@pytest.fixture
def heard():
    """What was announced."""
    found = []
    signals.index_condemned.connect(listener := lambda because, **_: found.append(because))
    yield found
    signals.index_condemned.disconnect(listener)


def test_the_rows_refuse_the_index_until_it_is_rebuilt(engine, heard):
    hand, task = engine.worker(), put()
    number = snapshot.generation()
    assert condemn("nothing starts")
    assert heard == ["nothing starts"]
    with pytest.raises(IndexNotReady):
        take(hand)
    assert rebuild_if_needed().generation == number + 2
    engine.index.register(hand.profile, hand.id)
    assert take_ids(hand) == [task]
    assert_index_agrees()
    assert IndexGeneration.objects.get().condemned_because == "nothing starts"


def test_it_waits_until_the_rebuild_is_done(engine, heard):
    assert condemn("one")
    assert not condemn("two"), "a rebuild is due anyway"
    assert heard == ["one"]


@pytest.mark.parametrize("sign", ["a task starts", "damage is found late"])
def test_after_a_rebuild_that_helped_it_waits_seven_seconds_at_most(engine, sign):
    """As with damage that comes again every few seconds."""
    hand = engine.worker()
    assert condemn("first")
    for number in range(8):
        rebuild_if_needed()
        if sign == "a task starts":
            put()
            engine.index.register(hand.profile, hand.id)
            assert take(hand)
            shift(7)
        else:
            shift(7, "started_at")
        assert condemn("again"), number
    assert IndexGeneration.objects.get().condemned == 3, "the doctor warns"


def test_the_wait_grows_again_where_rebuilds_no_longer_help(engine):
    assert condemn("first")
    for _ in range(4):  # these helped
        rebuild_if_needed()
        shift(7, "started_at")
        assert condemn("again")
    for wait in (7, 15, 31):
        rebuild_if_needed()
        assert not condemn("found at once")
        shift(wait - 2, "started_at", "damaged_at")
        assert not condemn("too early")
        shift(2, "started_at", "damaged_at")
        assert condemn(f"after {wait} s")


def test_each_one_that_follows_has_to_wait_twice_as_long(engine, heard):
    assert condemn("first")
    for number, wait in enumerate((1, 3, 7, 15), 1):
        rebuild_if_needed()
        shift(wait - 0.5)
        assert not condemn("too early")
        shift(0.5)
        assert condemn(f"after {wait} s"), number
    rebuild_if_needed()
    shift(601)
    assert condemn("much later")
    assert IndexGeneration.objects.get().condemned == 1, "after ten quiet minutes it counts from the beginning"


def test_a_clock_that_went_back_does_not_forbid_it(engine):
    assert condemn("before")
    rebuild_if_needed()
    shift(-3600)
    assert condemn("after")


def test_inside_a_transaction_nothing_is_done(engine):
    with transaction.atomic():
        assert not condemn("now")
    assert condemn("then")
