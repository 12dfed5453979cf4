"""register.lua, build_heads.lua, unregister.lua and unserved_types.lua: workers come and go."""

import uuid
from unittest.mock import Mock

import pytest

from queue_app.exceptions import IndexUnavailable
from queue_app.index import Profile
from tests.support.scene import Hand, Scene


def test_workers_with_equal_abilities_share_a_profile(scene: Scene):
    one, two, other = scene.worker("a b"), scene.worker("b a"), scene.worker("a")
    assert one.profile == two.profile != other.profile
    assert scene.check().profiles == {one.profile.id, other.profile.id}


def test_profiles_differ_by_every_part():
    parts = [
        ((), "a", ()),
        (("a",), "a", ()),
        ((), "ab", ()),
        ((), "a", ("a",)),
        (("a", "b"), "a", ()),
        (("a,b",), "a", ()),
    ]
    assert len({Profile.of(queues, list(types), caps).id for queues, types, caps in parts}) == len(parts)


def test_a_new_profile_finds_the_work_of_many_lanes(scene: Scene):
    """More lanes than one call of build_heads reads."""
    kinds = [f"k{n}" for n in range(1200)]
    scene.push(*(scene.task(kind, n, kind=kind) for n, kind in enumerate(kinds)))
    hand = scene.worker(" ".join(kinds))
    assert scene.claim(hand, 500).split() == kinds[:500]


def test_registering_again_changes_nothing(scene: Scene):
    scene.push(scene.task("x"))
    hand = scene.worker()
    scene.index.register(hand.profile, hand.id)
    assert scene.claim(hand, 2) == "x"
    assert scene.check().profile_parts[hand.profile.id]["workers"] == {str(hand.id)}


def test_a_worker_that_died_while_it_registered_leaves_others_of_its_profile_their_work(scene: Scene, monkeypatch):
    """The profile was registered but its heads were not built: the next worker builds them."""
    scene.push(scene.task("x"))
    profile = Profile.of((), ["a"], ())
    with monkeypatch.context() as patch:
        patch.setattr(scene.index, "_walk", Mock(side_effect=IndexUnavailable("the connection broke")))
        with pytest.raises(IndexUnavailable):
            scene.index.register(profile, uuid.uuid4())
    hand = Hand(uuid.uuid4(), profile)
    scene.index.register(profile, hand.id)
    assert scene.claim(hand) == "x"


def test_the_last_worker_takes_its_profile_along(scene: Scene):
    scene.push(scene.task("x"), scene.task("y", queue="q"))
    one, two = scene.worker(), scene.worker()
    scene.index.unregister(one.profile.id, one.id)
    assert scene.check().profiles == {one.profile.id}
    scene.index.unregister(two.profile.id, two.id)
    state = scene.check()
    assert (state.profiles, state.heads, state.queue_heads, state.idle) == (set(), {}, {}, {})


def test_unregistering_twice_or_an_unknown_worker_is_harmless(scene: Scene):
    one, two = scene.worker(), scene.worker()
    scene.index.unregister(one.profile.id, one.id)
    scene.index.unregister(one.profile.id, one.id)
    scene.index.unregister(one.profile.id, uuid.uuid4())
    scene.index.unregister("0" * 16, uuid.uuid4())
    scene.push(scene.task("x"))
    assert scene.claim(two) == "x"


def test_waiting_types_that_the_profile_does_not_run(scene: Scene):
    hand = scene.worker("a", queues=["p"])
    assert scene.index.unserved_types(hand.profile) == set()
    scene.push(
        scene.task("known", queue="p"),
        scene.task("new", queue="p", kind="b"),
        scene.task("new too", queue="p", kind="b", needs=["gpu"]),
        scene.task("elsewhere", queue="q", kind="c"),
    )
    assert scene.index.unserved_types(hand.profile) == {"b"}
    assert scene.index.unserved_types(scene.worker("a").profile) == {"b", "c"}
