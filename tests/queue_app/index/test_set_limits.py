"""set_limits.lua and lib/rooms.lua: limits apply from the next claim on."""

import uuid

import pytest

from queue_app.core.limits import Limits
from queue_app.core.records import Lease
from tests.support.engine import counted_calls
from tests.support.index_state import client_of
from tests.support.scene import Scene, set_limits


@pytest.mark.parametrize("limits", [{"rate_count": 3, "rate_seconds": 3600.0}, {"min_delay_seconds": 3600.0}])
def test_a_rate_begins_empty_also_after_everything_was_lost(scene: Scene, limits: dict[str, float]):
    """Guard: a bucket without a record is empty at the instant at which the index got its limit."""
    hand = scene.worker()
    for generation in (2, 3):
        client_of(scene.index).flushdb()
        scene.open(generation)
        scene.index.set_limits("t:a", Limits(**limits))
        scene.index.register(hand.profile, hand.id)
        scene.push(scene.task("x"))
        assert scene.claim(hand, 1) == ""


MANY = {f"q:q{n}": Limits(max_concurrent=n + 1) for n in range(1000)}


def test_the_limits_of_many_gates_are_copied_in_few_calls(scene: Scene):
    with counted_calls(scene.index) as called:
        assert scene.index.copy_limits(MANY.items()) == 1000
    assert called == ["set_limits"] * len(called)
    assert len(called) <= 20
    with counted_calls(scene.index) as called:
        assert scene.index.copy_limits({**MANY, "q:q500": Limits(paused=True)}.items()) == 1, "the others are the same"
    assert len(called) <= 10
    found = scene.check().limits
    assert (found["q999"]["max_concurrent"], found["q500"]["paused"]) == ("1000", "1")
    assert scene.index.copy_limits(dict.fromkeys(MANY).items()) == 1000
    assert scene.index.limited() == set()


def test_a_type_is_counted_among_gates_that_need_no_counting(scene: Scene):
    """More leases run than one call counts."""
    scene.index.restore_leases(Lease(uuid.UUID(int=n), "default\x1fa\x1f", n) for n in range(1, 601))
    gates = {"q:before": Limits(max_concurrent=1), "t:a": Limits(max_concurrent=2), "q:after": Limits(max_concurrent=3)}
    assert scene.index.copy_limits(gates.items()) == 3
    state = scene.check()
    assert (state.limits["before"]["max_concurrent"], state.limits["after"]["max_concurrent"]) == ("1", "3")
    assert len(state.held["t:a"]) == 600
    assert scene.index.copy_limits([("t:a", None), ("q:after", None)]) == 2
    assert "t:a" not in scene.check().held


def test_gates_that_an_edit_among_others_opens_show_what_waits_behind_them(scene: Scene):
    scene.index.copy_limits([("q:p", Limits(paused=True)), ("q:q", Limits(paused=True)), ("t:a", Limits(paused=True))])
    scene.push(scene.task("x", queue="p"), scene.task("y", 1, queue="q"), scene.task("z", 2))
    hand = scene.worker()
    assert scene.claim(hand, 5) == ""
    assert scene.index.copy_limits([("q:p", Limits()), ("q:q", Limits(paused=True)), ("t:a", Limits())]) == 2
    scene.check()
    assert scene.called(hand)
    assert scene.claim(hand, 5) == "x z"


@pytest.mark.parametrize("queue", ["default", ""])
def test_a_raised_cap_calls_a_worker(scene: Scene, queue: str):
    set_limits(scene.index, queue, max_concurrent=1)
    scene.push(scene.task("x"), scene.task("y", 1))
    hand = scene.worker()
    assert scene.claim(hand, 2) == "x"
    set_limits(scene.index, queue, max_concurrent=2)
    assert scene.called(hand)
