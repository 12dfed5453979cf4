"""claim.lua: which tasks a worker is proposed, in which order, under which limits."""

import uuid

import pytest

from queue_app.core.priorities import Band
from queue_app.exceptions import IndexNotReady, UnknownProfile
from queue_app.index import Index, Profile
from tests.support.index_state import client_of
from tests.support.leases import restore
from tests.support.scene import Hand, Scene, set_limits

# given tasks: name -> (ms, options); worker: (kinds, options); want; proposed in order
ORDER = {
    "equal instants run in the order of their ids": ({"x": (1, {}), "y": (1, {}), "z": (1, {})}, ("a", {}), 3, "x y z"),
    "fifo over queues and lanes, one step of 8 us apart": (
        {
            f"t{n}": (n * 0.008, {"queue": "pq"[n % 2], "kind": "ab"[n // 2 % 2], "needs": ["g"] if n % 3 else []})
            for n in range(12)
        },
        ("a b", {"offers": ["g"]}),
        12,
        " ".join(f"t{n}" for n in range(12)),
    ),
    "bands are strict over lanes and queues": (
        {
            "bg": (0, {"band": Band.BACKGROUND, "queue": "p"}),
            "lo": (1, {"band": Band.LOW, "kind": "b"}),
            "no": (2, {"band": Band.NORMAL, "queue": "q"}),
            "hi": (3, {"band": Band.HIGH}),
            "cr": (4, {"band": Band.CRITICAL, "queue": "p", "kind": "b"}),
        },
        ("a b", {}),
        5,
        "cr hi no lo bg",
    ),
    "every capability must be offered": (
        {"x": (1, {"needs": ["gpu", "ssd"]}), "y": (2, {"needs": ["gpu"]}), "z": (3, {"needs": ["ssd", "gpu", "arm"]})},
        ("a", {"offers": ["gpu", "ssd"]}),
        3,
        "x y",
    ),
    "a capability is a whole name": ({"x": (1, {"needs": ["gpu"]})}, ("a", {"offers": ["gp", "gpu2", "g"]}), 1, ""),
    "odd but legal names": (
        {
            "x": (1, {"queue": "A.b-c_9", "kind": "pkg.mod.<locals>.f %d [x] 'ü' *", "needs": ["GPU.v-1_b"]}),
            "y": (2, {"queue": "A.b-c_9.d", "kind": "a:b{c}"}),
        },
        (None, {"offers": ["GPU.v-1_b"]}),
        2,
        "x y",
    ),
}


@pytest.mark.parametrize("case", ORDER)
def test_order_and_matching(scene: Scene, case: str):
    given, (kinds, options), want, proposed = ORDER[case]
    tasks = [scene.task(name, at, **details) for name, (at, details) in given.items()]
    scene.push(*tasks)
    if kinds is None:  # names with spaces
        profile = Profile.of((), {task.task_type for task in tasks}, options["offers"])
        hand = Hand(uuid.uuid4(), profile)
        scene.index.register(profile, hand.id)
    else:
        hand = scene.worker(kinds, **options)

    assert scene.claim(hand, want) == proposed
    assert scene.leased() == set(proposed.split())
    assert scene.waiting() == set(given) - set(proposed.split())


def test_a_proposal_says_when_it_was_made_and_of_which_generation(scene: Scene):
    scene.open(7)
    scene.push(scene.task("x"))
    hand = scene.worker()
    before = scene.index.now()
    proposal = scene.propose(hand)
    assert proposal.generation == 7
    assert before <= proposal.leased_at <= scene.index.now()
    assert scene.check().queue_leases["default"] == {scene.tasks["x"].id: proposal.leased_at}


# -- limits ----------------------------------------------------------------------------


def test_a_queue_filled_through_other_lanes_stays_full_for_all_workers(scene: Scene):
    """The heads of workers that run other lanes still hold the queue; the claim checks the limit itself."""
    set_limits(scene.index, "p", max_concurrent=1)
    scene.push(scene.task("a0", 0, queue="p", kind="a"), scene.task("b0", 1, queue="p", kind="b"))
    one, other = scene.worker("a"), scene.worker("b")
    assert scene.claim(one) == "a0"
    assert scene.check().heads[other.profile.id] == {"p": scene.tasks["b0"].score}, "lazily left there"
    assert scene.claim(other) == ""
    assert other.profile.id not in scene.check().heads, "and taken out when met"
    scene.release("a0")
    assert scene.claim(other) == "b0"


@pytest.mark.parametrize("blocked", [1, 7])
def test_order_is_strict_behind_full_queues(scene: Scene, blocked: int):
    """A claim proposes the first tasks of all, however many full queues it meets."""
    other, hand = scene.worker("b"), scene.worker("a")
    for n in range(blocked):
        set_limits(scene.index, f"full{n}", max_concurrent=1)
        scene.push(scene.task(f"b{n}", n, queue=f"full{n}", kind="b"), scene.task(f"a{n}", n, queue=f"full{n}"))
    assert len(scene.claim(other, blocked).split()) == blocked
    scene.push(
        scene.task("late", 200, band=Band.BACKGROUND, queue="p"),
        scene.task("first", 100, queue="p"),
        scene.task("second", 101, band=Band.NORMAL, queue="q"),
        scene.task("third", 102, queue="r"),
    )
    assert scene.claim(hand, 2) == "first second"
    assert scene.claim(hand, 2) == "third late"


# -- stale copies ---------------------------------------------------------------------


def test_an_id_that_is_leased_is_never_proposed_again(scene: Scene):
    """A task runs, and a stale copy of it waits, as after a lost write. The claim removes the copy."""
    x = scene.task("x")
    scene.push(x, scene.task("y", 1))
    restore(scene.index, [(x.id, x.queue)])
    hand = scene.worker()
    assert scene.claim(hand, 5) == "y"
    assert scene.waiting() == set()
    assert scene.leased() == {"x", "y"}


@pytest.mark.parametrize("stale_lanes", [1, 5])
def test_work_behind_stale_copies_is_found_and_in_order(scene: Scene, stale_lanes: int):
    """Lanes whose first tasks are all stale copies hide nothing that comes after them."""
    hand = scene.worker(" ".join("abcdefgh"))
    for n in range(stale_lanes):
        stale = scene.task(f"stale{n}", n, kind="abcdefgh"[n])
        scene.push(stale)
        restore(scene.index, [(stale.id, stale.queue)])
    scene.push(scene.task("x", 100, kind="f"), scene.task("z", 300, kind="f"), scene.task("y", 200, kind="g"))
    assert scene.claim(hand, 2) == "x y"
    assert scene.claim(hand, 1) == "z"


def test_thousands_of_stale_copies_do_not_break_the_script(scene: Scene):
    """Lua unpacks fewer than 8000 values; a claim that failed half-way would leak its leases."""
    stale = [scene.task(f"s{n}", n) for n in range(9000)]
    scene.index.push(stale)
    restore(scene.index, [(task.id, task.queue) for task in stale])
    scene.push(scene.task("x", 10_000))
    assert scene.claim(scene.worker(), 3) == "x"
    assert scene.waiting() == set()


# -- sizes -------------------------------------------------------------------------------


def test_a_claim_of_hundreds_over_many_lanes(scene: Scene):
    scene.index.push([scene.task(f"t{n}", n, kind=f"k{n % 97}", queue=f"q{n % 13}") for n in range(700)])
    hand = scene.worker(" ".join(f"k{n}" for n in range(97)))
    assert scene.claim(hand, 500).split() == [f"t{n}" for n in range(500)]
    assert scene.claim(hand, 10_000).split() == [f"t{n}" for n in range(500, 700)]


# -- refused claims ----------------------------------------------------------------------


def test_nothing_is_proposed_without_a_generation(index: Index):
    scene = Scene(index)
    scene.push(scene.task("x"))
    hand = scene.worker()
    with pytest.raises(IndexNotReady):
        index.claim(hand.profile, hand.id, 1)
    index.begin_generation(1)
    with pytest.raises(IndexNotReady):
        index.claim(hand.profile, hand.id, 1)
    assert scene.leased() == set()


def test_nothing_is_proposed_by_an_index_of_another_server_run(scene: Scene):
    """A failover, or a snapshot that was loaded: the keys exist, and may be old."""
    scene.push(scene.task("x"))
    hand = scene.worker()
    client_of(scene.index).hset(f"{scene.index.keys.prefix}:generation", "run_id", "f" * 40)
    with pytest.raises(IndexNotReady):
        scene.index.claim(hand.profile, hand.id, 1)
    assert scene.leased() == set()


def test_an_unknown_worker_must_register_first(scene: Scene):
    scene.push(scene.task("x"))
    with pytest.raises(UnknownProfile):
        scene.index.claim(Profile.of((), ["a"], ()), uuid.uuid4(), 1)
    assert scene.leased() == set()
