"""set_limits.lua: caps and pauses as staff set them, in force from the next claim on."""

import pytest

from tests.support.scene import Scene, set_limits

# limits before, limits now -> whether anything changed
CHANGES = {
    "a first cap": (None, (3, False), True),
    "the same cap": ((3, False), (3, False), False),
    "another cap": ((3, False), (4, False), True),
    "no cap any more": ((3, False), (None, False), True),
    "none before and none now": (None, (None, False), False),
    "paused": ((3, False), (3, True), True),
    "still paused": ((None, True), (None, True), False),
    "resumed": ((None, True), (None, False), True),
}


@pytest.mark.parametrize("case", CHANGES)
def test_whether_anything_changed(scene: Scene, case: str):
    before, now, changed = CHANGES[case]
    if before:
        set_limits(scene.index, "q", max_concurrent=before[0], paused=before[1])
    assert set_limits(scene.index, "q", max_concurrent=now[0], paused=now[1]) is changed
    state = scene.check()
    assert state.limits.get("q", {}).get("max_concurrent") == (None if now[0] is None else str(now[0]))
    assert state.paused("q") is now[1]


@pytest.mark.parametrize("queue", ["default", ""])
def test_a_changed_cap_holds_at_the_next_claim(scene: Scene, queue: str):
    scene.push(*(scene.task(f"t{n}", n) for n in range(9)))
    hand = scene.worker()
    claimed = []
    for cap in (2, 3, 1, None):
        set_limits(scene.index, queue, max_concurrent=cap)
        scene.check()
        claimed.append(scene.claim(hand, 5))
    assert claimed == ["t0 t1", "t2", "", "t3 t4 t5 t6 t7"]


@pytest.mark.parametrize("queue", ["default", ""])
def test_a_raised_cap_calls_a_worker(scene: Scene, queue: str):
    set_limits(scene.index, queue, max_concurrent=1)
    scene.push(scene.task("x"), scene.task("y", 1))
    hand = scene.worker()
    assert scene.claim(hand, 2) == "x"
    set_limits(scene.index, queue, max_concurrent=2)
    assert scene.called(hand)


def test_a_lowered_cap_takes_nothing_away_from_what_runs(scene: Scene):
    scene.push(scene.task("x"), scene.task("y", 1), scene.task("z", 2))
    hand = scene.worker()
    assert scene.claim(hand, 2) == "x y"
    set_limits(scene.index, "default", max_concurrent=1)
    assert scene.leased() == {"x", "y"}
    scene.release("x")
    assert scene.claim(hand) == ""
    scene.release("y")
    assert scene.claim(hand) == "z"


def test_limits_of_a_queue_that_does_not_exist_yet(scene: Scene):
    set_limits(scene.index, "later", max_concurrent=1)
    scene.push(scene.task("x", queue="later"), scene.task("y", 1, queue="later"))
    assert scene.claim(scene.worker(), 5) == "x"
