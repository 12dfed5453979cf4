"""What a script does is bounded, whatever waits; what is left goes on in the next call, and the order stays."""

from __future__ import annotations

import uuid
from dataclasses import replace

import pytest

from queue_app.core.limits import Limits, lane_name
from queue_app.core.records import Lease, TaskRef
from queue_app.index import Profile
from tests.support import index_state
from tests.support.engine import counted_calls
from tests.support.scene import Hand, Scene

#: More than a claim moves.
MANY = 350


def keyed(scene: Scene, n: int, *, user: str = "", family: str = "c", start: int = 0) -> list[TaskRef]:
    """Tasks that are queued one after another, each with a key of its own."""
    tasks = [scene.task(f"{family}{i}", i) for i in range(start, start + n)]
    return [replace(task, user=user, concurrency_key=f"{family}:{i}") for i, task in enumerate(tasks, start)]


def drain(scene: Scene, hand: Hand, want: int = 10) -> tuple[list[str], int]:
    """Claim until nothing is left to do; return the names of the tasks, and the number of claims."""
    names, calls = [], 0
    while True:
        proposal = scene.index.claim(hand.profile, hand.id, want)
        index_state.check(scene.index)
        names += [scene.names[task_id] for task_id, _ in proposal.tasks]
        calls += 1
        if not proposal.tasks and proposal.wait != 0:
            return names, calls


def test_keys_without_limits_make_no_lanes(scene: Scene):
    scene.push(*keyed(scene, 3))
    assert set(index_state.read(scene.index).lanes) == {"default\x1fa\x1f"}


def test_tasks_of_a_user_at_its_cap_step_aside_some_at_a_time_and_nothing_overtakes_meanwhile(scene: Scene):
    scene.index.set_limits("q:default", Limits(max_concurrent_per_user=1))
    hand = scene.worker()
    held = keyed(scene, MANY, user="u")
    other = scene.task("other", MANY)
    scene.push(*held, replace(other, user="v"))
    first = scene.index.claim(hand.profile, hand.id, 10)
    assert [scene.names[task_id] for task_id, _ in first.tasks] == ["c0"]
    assert first.wait == 0, "it stopped before it had seen all"
    assert scene.index.wait_for_call(hand.id, 1), "and is to go on at once"
    names, calls = drain(scene, hand)
    assert names == ["other"]
    assert calls == 3, "one moves more of them, one moves the rest and finds the other, one finds nothing"
    scene.index.release([Lease(task_id, queue, first.leased_at) for task_id, queue in first.tasks])
    assert drain(scene, hand)[0] == ["c1"], "the user's next one, in order"


def test_a_paused_family_waits_in_one_lane_and_comes_back_at_once(scene: Scene):
    index, hand = scene.index, scene.worker()
    index.set_limits("k:c", Limits(max_concurrent=1, paused=True))
    tasks = keyed(scene, MANY)
    scene.push(*tasks)
    assert drain(scene, hand)[0] == []
    assert len(index_state.read(index).lanes) == 1
    index.set_limits("k:c", Limits(max_concurrent=1))
    assert drain(scene, hand, 500)[0] == [scene.names[task.id] for task in tasks]


def test_what_is_pushed_to_a_closed_gate_is_not_met_by_claims(scene: Scene):
    index, hand = scene.index, scene.worker()
    index.set_limits("q:default", Limits(max_concurrent_per_user=1))
    one, two, three = (replace(scene.task(name, at), user="u") for at, name in enumerate(("one", "two", "three")))
    index.push([one])
    [(task_id, queue)] = (first := index.claim(hand.profile, hand.id, 1)).tasks
    index.push([two, three])
    assert set(index_state.check(index).lanes) == {lane_name("default", "a", (), "u", "", 2).removesuffix("2") + "1"}
    assert index.push([two, three]) == 0, "and it stays there"
    assert index.misplaced([]) == []
    index.release([Lease(task_id, queue, first.leased_at)])
    assert drain(scene, hand)[0] == ["two"]


@pytest.mark.parametrize("limits", [Limits(max_concurrent=1), Limits(max_concurrent=2)])
def test_the_first_limit_of_a_family_counts_all_that_runs_in_steps(scene: Scene, limits):
    index = scene.index
    lanes = [lane_name("default", "a", (), "", f"c:{i % 3}", 1) for i in range(1_500)]
    index.restore_leases(Lease(uuid.UUID(int=i + 1), lane, i + 1) for i, lane in enumerate(lanes))
    assert index.set_limits("k:c", limits)
    assert {gate: len(ids) for gate, ids in index_state.check(index).held.items()} == dict.fromkeys(
        ("k:c:0", "k:c:1", "k:c:2"), 500
    )
    assert not index.set_limits("k:c", limits)
    assert index.set_limits("k:c", None)
    assert index_state.check(index).held == {}


def test_a_process_that_dies_while_it_counts_leaves_the_rest_to_the_next_copy(scene: Scene, monkeypatch):
    index, limits = scene.index, Limits(max_concurrent=1)
    lane = lane_name("default", "a", (), "", "c:1", 1)
    index.restore_leases(Lease(uuid.UUID(int=i + 1), lane, i + 1) for i in range(1_500))
    with monkeypatch.context() as patch:
        patch.setattr(index, "_scan", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            index.set_limits("k:c", limits)
    assert index.set_limits("k:c", limits)
    assert len(index_state.check(index).held["k:c:1"]) == 1_500


def test_many_gates_open_in_steps_and_claims_go_on_with_them(scene: Scene, monkeypatch):
    index, hand = scene.index, scene.worker()
    index.set_limits("k:c", Limits(max_concurrent=1))
    tasks = keyed(scene, MANY)
    scene.push(*tasks)
    assert len(drain(scene, hand, 500)[0]) == MANY
    twins = [replace(task, id=uuid.UUID(int=task.id.int + (1 << 64))) for task in tasks]
    scene.names |= {twin.id: scene.names[task.id] + "'" for twin, task in zip(twins, tasks, strict=True)}
    index.push(twins)
    assert drain(scene, hand, 500)[0] == [], "each waits behind a gate of its own"
    plain = index._call
    monkeypatch.setattr(index, "_call", lambda name, *args: 0 if name == "refill" else plain(name, *args))
    index.set_limits("k:c", Limits(max_concurrent=2))  # of a process that dies before the second step
    found = drain(scene, hand, 500)[0]
    assert sorted(found) == sorted(scene.names[twin.id] for twin in twins)


def test_one_more_worker_of_a_profile_builds_nothing(scene: Scene):
    scene.push(scene.task("x"))
    scene.worker()
    with counted_calls(scene.index) as called:
        hand = scene.worker()
    assert called == ["register"]
    assert drain(scene, hand)[0] == ["x"]


def test_a_profile_that_is_half_forgotten_is_forgotten_before_it_is_used_again(scene: Scene, monkeypatch):
    index = scene.index
    index.set_limits("k:c", Limits(max_concurrent=1, paused=True))
    scene.push(*keyed(scene, 3))
    hand = scene.worker()
    assert drain(scene, hand)[0] == []
    with monkeypatch.context() as patch:
        patch.setattr(index, "_scan", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            index.unregister(hand.profile.id, hand.id)
    index.set_limits("k:c", Limits(max_concurrent=1))
    assert drain(scene, scene.worker())[0] == ["c0", "c1", "c2"]


def test_a_profile_of_a_fair_queue_with_many_owners_is_forgotten_in_steps(scene: Scene):
    scene.index.set_limits("q:default", Limits(fair_by="user"))
    scene.push(*(replace(scene.task(f"t{i}", i), user=f"u{i}") for i in range(MANY)))
    hand = scene.worker()
    scene.index.unregister(hand.profile.id, hand.id)
    state = index_state.check(scene.index)
    assert (state.heads, state.queue_heads, state.turns) == ({}, {}, {})


def test_unserved_types_are_counted_not_looked_for(scene: Scene):
    profile = Profile.of((), ["a"], ())
    scene.push(scene.task("x"), scene.task("y", kind="b"), scene.task("z", kind="c", queue="other"))
    scene.index.register(profile, uuid.uuid4())
    assert scene.index.unserved_types(profile) == {"b", "c"}
    assert scene.index.unserved_types(replace(profile, queues=("default",))) == {"b"}
    scene.index.remove([scene.tasks["y"]])
    assert scene.index.unserved_types(profile) == {"c"}
