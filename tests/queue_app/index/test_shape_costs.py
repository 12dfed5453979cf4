"""A script runs as many commands when much waits as when little does (``./dev bench shapes`` measures their time)."""

from __future__ import annotations

import struct
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from queue_app.core.limits import Limits, lane_name
from queue_app.core.records import Lease, PackedLane
from queue_app.index import Index, Profile
from queue_app.services.repair.reconcile import Audit
from tests.queue_app.index.test_shapes import keyed
from tests.support.engine import counted_calls, scripts_through
from tests.support.index_clock import stop_clock
from tests.support.index_state import client_of
from tests.support.scene import Hand, Scene

FEW, MANY = 500, 2_000  # a claim moves about 200
#: Commands of one script: about 5 ms.
MOST = 5_000

type Shape = Callable[[Scene, int], Iterator[object]]


def claim(scene: Scene, hand: Hand, calls: int = 5) -> None:
    for _ in range(calls):
        scene.index.claim(hand.profile, hand.id, 10)


def a_user_at_its_cap(scene: Scene, n: int) -> Iterator[object]:
    scene.index.set_limits("q:default", Limits(max_concurrent_per_user=1))
    hand = scene.worker()
    scene.index.push(keyed(scene, n, user="u"))
    yield
    claim(scene, hand)


def a_family_that_is_paused_and_resumed(scene: Scene, n: int) -> Iterator[object]:
    scene.index.set_limits("t:a", Limits(max_concurrent=10_000))
    scene.index.set_limits("k:c", Limits(max_concurrent=5))
    hand = scene.worker()
    scene.index.push(keyed(scene, n))
    yield
    claim(scene, hand, 1)
    scene.index.set_limits("k:c", Limits(max_concurrent=5, paused=True))
    claim(scene, hand)
    scene.index.set_limits("k:c", Limits(max_concurrent=5))
    scene.index.set_limits("k:c", Limits(max_concurrent=6))


def a_family_whose_refills_are_all_due(scene: Scene, n: int) -> Iterator[object]:
    scene.index.set_limits("k:c", Limits(rate_count=1, rate_seconds=600.0, rate_burst=1))
    hand = scene.worker()
    scene.index.push(keyed(scene, n))
    claim(scene, hand, 2 + n // 150)
    yield "an hour later"
    claim(scene, hand)
    scene.index.wake_idle()


def a_fair_queue(scene: Scene, n: int) -> Iterator[object]:
    scene.index.set_limits("q:default", Limits(fair_by="user"))
    hand = scene.worker()
    tasks = [replace(task, user=f"u{i}") for i, task in enumerate(keyed(scene, n))]
    scene.index.push(tasks)
    yield
    claim(scene, hand)
    scene.index.position(tasks[n // 2])


def beats_and_submissions(scene: Scene, n: int) -> Iterator[object]:
    hand = scene.worker()
    tasks = keyed(scene, n)
    scene.index.push(tasks)
    yield
    scene.index.unserved_types(hand.profile)
    scene.index.register(hand.profile, uuid.uuid4())
    scene.index.position(tasks[n // 2])


def the_first_limit_of_running_tasks(scene: Scene, n: int) -> Iterator[object]:
    lanes = [lane_name("default", "a", (), "", f"c:{i}", 1) for i in range(n)]
    scene.index.restore_leases(Lease(uuid.UUID(int=i + 1), lane, i + 1) for i, lane in enumerate(lanes))
    yield
    scene.index.set_limits("k:c", Limits(max_concurrent=1))


def many_queues(scene: Scene, n: int) -> Iterator[object]:
    hand = scene.worker()
    scene.index.push(scene.task(f"t{i}", i, queue=f"q{i}") for i in range(n // 5))
    yield
    claim(scene, hand)


def a_load_of_many_lanes(scene: Scene, n: int) -> Iterator[object]:
    scene.worker()
    lanes = [
        PackedLane(lane_name(f"q{i}", "a", ()), uuid.UUID(int=i + 1).bytes, struct.pack(">d", 2e13 + i))
        for i in range(n)
    ]
    yield
    scene.index.push_lanes(lanes)
    assert scene.index.misplaced(lanes) == []


def limits_of_many_queues(scene: Scene, n: int) -> Iterator[object]:
    hand = scene.worker()
    scene.index.push(scene.task(f"t{i}", i, queue=f"q{i}") for i in range(n // 5))
    yield
    for cap in (1, 2, 2, None):
        limits = Limits(max_concurrent=cap)
        scene.index.copy_limits([("t:a", limits), *((f"q:q{i}", limits) for i in range(n))])
    claim(scene, hand)


def walk_everywhere(scene: Scene, hand: Hand) -> None:
    """Ask and do all that concerns each queue."""
    scene.index.unserved_types(hand.profile)
    scene.index.stats()
    assert len(dict(scene.index.lane_sizes())) == len(scene.index.queues())
    assert len(scene.index.leased_queues(scene.index.queues())) == 5
    audit = Audit()
    audit.step(scene.index)  # meets the profile
    audit.step(scene.index)
    while audit.left:
        audit.step(scene.index)
    other = Hand(uuid.uuid4(), Profile.of((), ["a", "b"], ()))
    scene.index.register(other.profile, other.id)
    claim(scene, other, 1)
    scene.index.unregister(other.profile.id, other.id)


def walks_over_many_queues(scene: Scene, n: int) -> Iterator[object]:
    hand = scene.worker()
    scene.index.push(scene.task(f"t{i}", i, queue=f"q{i}") for i in range(n + 5))
    scene.index.claim(hand.profile, hand.id, 5)
    scene.index.push(scene.task(f"u{i}", i, queue=f"q{i}") for i in range(5))
    yield
    walk_everywhere(scene, hand)


SHAPES: tuple[Shape, ...] = (
    a_user_at_its_cap, a_family_that_is_paused_and_resumed, a_family_whose_refills_are_all_due, a_fair_queue,
    beats_and_submissions, the_first_limit_of_running_tasks, many_queues, a_load_of_many_lanes, limits_of_many_queues,
    walks_over_many_queues,
)  # fmt: skip


def commands(index: Index) -> int:
    """Return the number of commands that the server has run, also within scripts."""
    return sum(counted["calls"] for counted in client_of(index).info("commandstats").values())


def longest(index: Index, shape: Shape, n: int, patch: pytest.MonkeyPatch) -> int:
    """Return the number of commands of the script that ran most of them."""
    found = [0]

    def counting(run: Callable[..., object], *arguments: object) -> object:
        before = commands(index)
        try:
            return run(*arguments)
        finally:
            found.append(commands(index) - before)

    steps = shape(Scene(index).open(), n)
    if next(steps):
        stop_clock(index, datetime.now(UTC) + timedelta(hours=1), patch)
    with scripts_through(index, counting):
        assert next(steps, None) is None
    return max(found)


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.__name__)
def test_the_longest_script_does_not_grow_with_what_waits(index: Index, clean_index, monkeypatch, shape: Shape):
    found = []
    for n in (FEW, MANY):
        with monkeypatch.context() as patch:
            found.append(longest(index, shape, n, patch))
        clean_index()
    few, many = found
    assert many <= 1.1 * few + 10
    assert many <= MOST


@pytest.mark.parametrize("act", ["edit", "release"])
def test_what_changes_the_room_of_a_queue_runs_three_commands_for_each_profile(index: Index, clean_index, act: str):
    """Two put the queue among the heads, one asks for an idle worker; the room is the same for all profiles."""
    found = []
    for n in (1, 10, 60):  # the first loads the script
        scene = Scene(index).open()
        scene.index.set_limits("q:default", Limits(max_concurrent=1))
        hands = [scene.worker(offers=[f"host{i}"]) for i in range(n)]
        scene.push(scene.task("x", 1), scene.task("y", 2))
        proposal = index.claim(hands[0].profile, hands[0].id, 1)
        before = commands(index)
        if act == "edit":
            index.set_limits("q:default", Limits(max_concurrent=2))
        else:
            index.release([Lease(*proposal.tasks[0], proposal.leased_at)])
        found.append(commands(index) - before)
        clean_index()
    assert found[2] - found[1] == 3 * 50


def test_a_walk_over_many_queues_takes_few_calls(index: Index):
    """One call for each queue would take seconds with thousands of them."""
    shape = walks_over_many_queues(Scene(index).open(), MANY)
    next(shape)
    with counted_calls(index) as called:
        assert next(shape, None) is None
    assert set(called) >= {"stats", "lane_sizes", "leased_queues", "audit", "build_heads", "forget_heads"}
    assert max(Counter(called).values()) <= MANY / 40
