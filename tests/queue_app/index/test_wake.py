"""Wake-up calls (lib/wake.lua, wake_idle.lua): new work wakes exactly one idle worker that can run it.

A worker is idle once a claim gave it less than it wanted. A call removes it from the idle workers, so the next call
reaches another one. A claim passes the call on while there is work for an idle worker.
"""

import pytest

from tests.support.index_state import client_of
from tests.support.leases import restore
from tests.support.scene import Hand, Scene, set_limits


def idle(scene: Scene, *args: str, **kwargs: object) -> Hand:
    """Return a worker that found nothing and waits."""
    hand = scene.worker(*args, **kwargs)  # type: ignore[arg-type]
    assert scene.claim(hand) == ""
    return hand


# -- push ----------------------------------------------------------------------------


def test_the_longest_idle_worker_is_called_first(scene: Scene):
    one, two = idle(scene), idle(scene)
    scene.push(scene.task("x"))
    assert scene.who_was_called(one=one, two=two) == "one"
    scene.push(scene.task("y"))
    assert scene.who_was_called(one=one, two=two) == "two"
    scene.push(scene.task("z"))
    assert scene.who_was_called(one=one, two=two) == "", "both are on their way"


def test_a_push_calls_a_worker_that_can_run_the_task(scene: Scene):
    plain, gpu, other = idle(scene), idle(scene, "a", offers=["gpu"]), idle(scene, "b")
    elsewhere = idle(scene, "a", queues=["q"], offers=["gpu"])
    scene.push(scene.task("x", needs=["gpu"]))
    assert scene.who_was_called(plain=plain, gpu=gpu, other=other, elsewhere=elsewhere) == "gpu"


def test_a_push_that_changes_nothing_wakes_no_worker(scene: Scene):
    scene.push(scene.task("x"))
    one = scene.worker()
    assert scene.claim(one, 2) == "x"
    scene.push(scene.tasks["x"])
    assert not scene.called(one)


def test_a_push_into_a_queue_that_may_not_start_anything_wakes_no_worker(scene: Scene):
    one = idle(scene)
    set_limits(scene.index, "p", max_concurrent=None, paused=True)
    scene.push(scene.task("x", queue="p"))
    assert not scene.called(one)
    set_limits(scene.index, "", max_concurrent=1)
    restore(scene.index, [(scene.task("running", queue="r").id, "r")])
    scene.push(scene.task("y"))
    assert not scene.called(one)


def test_busy_workers_are_not_called(scene: Scene):
    scene.push(scene.task("x"))
    one = scene.worker()
    assert scene.claim(one, 1) == "x"  # all it wanted
    scene.push(scene.task("y"))
    assert not scene.called(one)


def test_a_claim_without_registering_leaves_the_worker_uncalled(scene: Scene):
    one = scene.worker()
    assert scene.claim(one, idle=False) == ""
    scene.push(scene.task("x"))
    assert not scene.called(one)


def test_a_claim_takes_back_the_call_that_it_answers(scene: Scene):
    one, two = idle(scene), idle(scene)
    scene.push(scene.task("x"))
    assert scene.claim(one) == "x"
    assert not scene.called(one)
    scene.push(scene.task("y"))
    assert scene.who_was_called(one=one, two=two) == "two"


# -- passing on --------------------------------------------------------------------------


def test_a_claim_that_leaves_work_behind_calls_the_next(scene: Scene):
    one, two, three = idle(scene), idle(scene), idle(scene)
    scene.push(*(scene.task(f"t{n}", n) for n in range(3)))
    assert scene.who_was_called(one=one, two=two, three=three) == "one"
    assert scene.claim(one) == "t0"
    assert scene.who_was_called(one=one, two=two, three=three) == "two"
    assert scene.claim(two) == "t1"
    assert scene.who_was_called(one=one, two=two, three=three) == "three"
    assert scene.claim(three, 5) == "t2"
    assert scene.who_was_called(one=one, two=two, three=three) == ""


# -- slots that come free ------------------------------------------------------------------


def test_each_freed_slot_of_a_full_queue_calls_one_worker(scene: Scene):
    set_limits(scene.index, "default", max_concurrent=2)
    scene.push(*(scene.task(f"t{n}", n) for n in range(4)))
    busy, one, two = scene.worker(), scene.worker(), scene.worker()
    assert scene.claim(busy, 2) == "t0 t1"
    assert scene.claim(one) == scene.claim(two) == ""
    scene.release("t0")
    assert scene.who_was_called(one=one, two=two) == "one"
    assert scene.claim(one) == "t2"
    assert not scene.called(two), "the queue is full again"
    scene.release("t1")
    assert scene.called(two)


def test_a_release_that_frees_nothing_wakes_no_worker(scene: Scene):
    set_limits(scene.index, "default", max_concurrent=1)
    scene.push(scene.task("x", 0), scene.task("y", 1))
    busy, one = scene.worker(), scene.worker()
    assert scene.claim(busy) == "x"
    assert scene.claim(one) == ""
    scene.release("x")
    assert scene.called(one)
    assert scene.claim(one) == "y"
    assert scene.claim(busy) == ""
    scene.release("x")
    assert not scene.called(busy)


def test_wake_idle_spends_no_call_on_a_worker_that_has_nothing_to_do(scene: Scene):
    set_limits(scene.index, "full", max_concurrent=1)
    useless, filler = scene.worker("a"), scene.worker("b")
    scene.push(scene.task("b0", 0, queue="full", kind="b"), scene.task("a0", 3, queue="full"))
    assert scene.claim(filler) == "b0"
    scene.rest(useless)
    assert scene.index.wake_idle() == 0
    assert not scene.called(useless)


# -- other ways for work to appear -----------------------------------------------------------


def test_wake_idle_finds_work_whose_call_was_lost(scene: Scene):
    """The called worker died: its call is gone. The fallback calls one worker of each profile that has work."""
    died, one, two, other = idle(scene), idle(scene), idle(scene), idle(scene, "b")
    scene.push(scene.task("x"))
    assert scene.called(died)
    assert scene.index.wake_idle() == 1
    assert scene.who_was_called(one=one, two=two, other=other) == "one"


def test_wake_idle_does_nothing_when_nothing_can_start(scene: Scene):
    one = idle(scene)
    assert scene.index.wake_idle() == 0
    set_limits(scene.index, "default", max_concurrent=None, paused=True)
    scene.push(scene.task("x"))
    assert scene.index.wake_idle() == 0
    assert not scene.called(one)


def test_unregistering_with_an_unread_call_passes_it_on(scene: Scene):
    one, two = idle(scene), idle(scene)
    scene.push(scene.task("x"))
    scene.index.unregister(one.profile.id, one.id)
    scene.check()
    assert scene.called(two)


def test_unregistering_without_a_call_wakes_no_worker(scene: Scene):
    one, two = idle(scene), idle(scene)
    scene.index.unregister(one.profile.id, one.id)
    assert not scene.called(two)


def test_a_wait_returns_at_once_when_called_and_after_its_timeout_else(scene: Scene):
    one = idle(scene)
    assert scene.index.wait_for_call(one.id, 0.01) is None
    scene.push(scene.task("x"))
    assert scene.index.wait_for_call(one.id, 5)


@pytest.mark.parametrize("lanes", [{"default\x1fa\x1f": 2e13}, {}], ids=["of a lane", "of a queue"])
def test_a_stale_head_is_read_once(scene: Scene, lanes: dict[str, float]):
    """A push during the wipe of a rebuild writes heads, then the lane is wiped. No worker may be woken for ever."""
    hand = scene.worker()
    heads = f"{scene.index.keys.prefix}:heads:{hand.profile.id}"
    client_of(scene.index).zadd(heads, {"default": 2e13})
    if lanes:
        client_of(scene.index).zadd(f"{heads}:default", lanes)
    scene.index.claim(hand.profile, hand.id, 1)
    assert not scene.called(hand)
    assert scene.check().heads.get(hand.profile.id, {}) == {}


def test_the_call_is_not_lost_at_a_full_queue(scene: Scene):
    """Next in the claimer's heads is a queue that others have filled, and behind it is work."""
    set_limits(scene.index, "full", max_concurrent=1)
    filler, one, two = scene.worker("b"), scene.worker("a"), scene.worker("a")
    scene.push(
        scene.task("b0", 0, queue="full", kind="b"),
        scene.task("a0", 5, queue="full"),
        scene.task("a1", 1, queue="r"),
        scene.task("a2", 9, queue="s"),
    )
    assert scene.claim(filler) == "b0"
    assert "full" in scene.check().heads[one.profile.id], "or this test proves nothing"
    scene.rest(two)
    assert scene.claim(one) == "a1"
    assert scene.called(two)
    assert scene.claim(two) == "a2"


def test_resuming_a_queue_reaches_every_kind_of_worker_that_has_work_in_it(scene: Scene):
    """One worker is called; its claim passes the call on to the other, although no work is left for itself."""
    set_limits(scene.index, "default", max_concurrent=None, paused=True)
    scene.push(scene.task("x", kind="x"), scene.task("y", kind="y"))
    hands = {"x": idle(scene, "x"), "y": idle(scene, "y")}
    set_limits(scene.index, "default", max_concurrent=None, paused=False)
    first = scene.who_was_called(**hands)
    assert first in ("x", "y")
    assert scene.claim(hands[first], 5) == first
    second = scene.who_was_called(**hands)
    assert {first, second} == {"x", "y"}
    assert scene.claim(hands[second], 5) == second
    assert scene.who_was_called(**hands) == ""


def test_opening_a_generation_calls_a_worker(scene: Scene):
    scene.index.begin_generation(2)
    one = scene.worker()
    scene.push(scene.task("x"))
    scene.rest(one)
    assert scene.index.finish_generation(2)
    assert scene.called(one)
