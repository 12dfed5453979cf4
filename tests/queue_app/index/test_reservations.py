"""lib/reservations.lua: one worker drains for a task that needs many slots, and the others take what is behind it."""

import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import count

import pytest

from queue_app.core.priorities import Band
from queue_app.core.records import TaskRef
from queue_app.index import Profile
from tests.support.index_state import client_of
from tests.support.leases import release
from tests.support.scene import Hand, Scene, set_limits

SLOTS = 8


def task(scene: Scene, name: str, at: float, *, weight: int = 1, user: str = "", **details: object) -> TaskRef:
    """Return a task with a weight and a user."""
    scene.tasks[name] = replace(scene.task(name, at, **details), weight=weight, user=user)  # type: ignore[arg-type]
    return scene.tasks[name]


def push(scene: Scene, lights: int, *heavy: str) -> None:
    """Push tasks of 8 slots, and lighter ones behind them."""
    scene.push(*(task(scene, name, n, weight=SLOTS, kind=name[0]) for n, name in enumerate(heavy)))
    scene.push(*(task(scene, f"light{n}", 100 + n) for n in range(lights)))


def reservations(scene: Scene) -> list[str]:
    """Return the workers that drain."""
    return sorted(text.split()[1] for text in scene.check().reservations.values())


def store(scene: Scene, value: str) -> None:
    """Overwrite the value of every reservation."""
    key = f"{scene.index.keys.prefix}:reservations"
    for lane in client_of(scene.index).hkeys(key):
        client_of(scene.index).hset(key, lane, value)


def test_one_worker_drains_for_a_heavy_task_and_the_others_start_lighter_ones(scene: Scene):
    workers = [scene.worker() for _ in range(10)]
    push(scene, 50, "a")
    assert [len(scene.propose(hand, 1).tasks) for hand in workers] == [0] + [1] * 9
    assert reservations(scene) == [str(workers[0].id)]
    for free in range(1, SLOTS):
        assert scene.claim(workers[0], free) == "", "it takes nothing behind the heavy task"
    assert scene.claim(workers[0], SLOTS) == "a", "which starts as soon as it has the slots"
    assert reservations(scene) == []
    assert scene.claim(workers[0], 1) == "light9"


def test_a_worker_with_enough_slots_takes_a_reserved_task(scene: Scene):
    drains, free = scene.worker(), scene.worker()
    push(scene, 2, "a")
    assert scene.claim(drains, 1) == ""
    assert scene.claim(free, SLOTS + 1) == "a light0"
    assert scene.called(drains), "there is a task for it again"
    assert scene.claim(drains, 1) == "light1"


def test_workers_drain_for_two_heavy_tasks_at_once(scene: Scene):
    workers = [scene.worker("a b") for _ in range(4)]
    push(scene, 9, "a0", "b0")
    assert [scene.claim(hand, 2) for hand in workers] == ["", "", "light0 light1", "light2 light3"]
    assert reservations(scene) == sorted(str(hand.id) for hand in workers[:2])
    assert [scene.claim(hand, SLOTS) for hand in workers[:2]] == ["a0", "b0"]
    assert reservations(scene) == []


def test_a_worker_drains_for_the_more_urgent_of_two_tasks(scene: Scene):
    hand, other = scene.worker("a b"), scene.worker("a b")
    push(scene, 3, "a0")
    assert scene.claim(hand, 2) == ""
    scene.push(task(scene, "b0", 0, weight=SLOTS, kind="b", band=Band.CRITICAL))
    assert scene.claim(hand, 2) == ""
    assert scene.claim(other, 2) == ""
    assert reservations(scene) == sorted([str(hand.id), str(other.id)])
    assert scene.claim(hand, SLOTS) == "b0"


def test_a_reservation_ends_when_its_worker_unregisters(scene: Scene):
    drains, other = scene.worker(), scene.worker()
    push(scene, 2, "a")
    assert scene.claim(drains, 1) == ""
    scene.index.unregister(drains.profile.id, drains.id)
    assert reservations(scene) == []
    assert scene.claim(other, 7) == ""
    assert reservations(scene) == [str(other.id)]


@pytest.mark.parametrize("value", ["1 {}", "0 {}", "junk", "", "9e99 {}", "12345"])
def test_a_reservation_that_lapsed_or_is_unreadable_counts_as_none(scene: Scene, value: str):
    drains, other = scene.worker(), scene.worker()
    push(scene, 2, "a")
    assert scene.claim(drains, 1) == ""
    store(scene, value.format(drains.id))
    assert scene.claim(other, 1) == ""
    assert reservations(scene) == [str(other.id)]
    assert scene.claim(drains, 1) == "light0"


def test_a_key_of_another_type_counts_as_no_reservations(scene: Scene):
    hand = scene.worker()
    push(scene, 2, "a")
    client_of(scene.index).set(f"{scene.index.keys.prefix}:reservations", "junk")
    assert scene.claim(hand, 1) == ""
    assert reservations(scene) == [str(hand.id)]


def test_a_reservation_that_ends_too_late_is_shortened(scene: Scene):
    """The clock of the server went back by a day."""
    drains, other = scene.worker(), scene.worker()
    push(scene, 2, "a")
    assert scene.claim(drains, 1) == ""
    store(scene, f"{scene.index.now() + 86_400_000_000} {drains.id}")
    assert scene.claim(other, 1) == "light0"
    (value,) = scene.check().reservations.values()
    assert int(value.split()[0]) <= scene.index.now() + 30_000_000


def test_a_claim_renews_the_reservation(scene: Scene):
    hand = scene.worker()
    push(scene, 2, "a")
    assert scene.claim(hand, 1) == ""
    soon = scene.index.now() + 1_000_000
    store(scene, f"{soon} {hand.id}")
    assert scene.claim(hand, 2) == ""
    (value,) = scene.check().reservations.values()
    assert int(value.split()[0]) > soon + 20_000_000


def test_a_worker_that_will_not_have_the_slots_reserves_nothing(scene: Scene):
    hand, other = scene.worker(), scene.worker()
    push(scene, 2, "a")
    proposal = scene.index.claim(hand.profile, hand.id, 1, reserve=False)
    assert [scene.names[task_id] for task_id, _ in proposal.tasks] == ["light0"]
    assert reservations(scene) == []
    assert scene.claim(other, 1) == ""


# -- wake-up calls -----------------------------------------------------------------------


def test_a_light_task_behind_a_reserved_lane_wakes_a_worker_that_does_not_drain(scene: Scene):
    drains, other = scene.worker(), scene.worker()
    push(scene, 0, "a")
    assert scene.claim(drains, 3) == scene.claim(other, 1) == ""
    scene.push(task(scene, "light", 200))
    assert scene.who_was_called(drains=drains, other=other) == "other"
    assert scene.claim(other, 1) == "light"
    assert scene.who_was_called(drains=drains, other=other) == ""


def test_many_light_tasks_wake_one_worker_after_the_other(scene: Scene):
    workers = {f"w{n}": scene.worker() for n in range(4)}
    push(scene, 0, "a")
    assert [scene.claim(hand, 1) for hand in workers.values()] == [""] * 4
    push(scene, 3)
    started = []
    while called := scene.who_was_called(**workers):
        assert " " not in called
        started.append(scene.claim(workers[called], 1))
    assert started == ["light0", "light1", "light2"]


def test_a_worker_that_drains_is_woken_for_an_earlier_task_only(scene: Scene):
    drains = scene.worker()
    push(scene, 0, "a")
    assert scene.claim(drains, 1) == ""
    scene.push(task(scene, "behind", 200))
    assert not scene.called(drains)
    scene.push(task(scene, "urgent", 300, band=Band.CRITICAL))
    assert scene.called(drains)
    assert scene.claim(drains, 1) == "urgent"


def test_a_worker_that_drains_for_the_second_heavy_task_is_woken_for_what_is_between(scene: Scene):
    first, second = scene.worker("a b"), scene.worker("a b")
    push(scene, 0, "a0", "b0")
    assert scene.claim(first, 1) == scene.claim(second, 1) == ""
    scene.push(task(scene, "between", 0.5))
    assert scene.who_was_called(first=first, second=second) == "second"
    assert scene.claim(second, 1) == "between"


def test_a_light_task_wakes_a_worker_when_the_reservation_has_ended(scene: Scene):
    """The woken worker reserves the lane, and its claim wakes another worker for the light task."""
    gone, one, two = scene.worker(), scene.worker(), scene.worker()
    push(scene, 0, "a")
    assert [scene.claim(hand, 1) for hand in (gone, one, two)] == [""] * 3
    scene.index.unregister(gone.profile.id, gone.id)
    scene.push(task(scene, "light", 200))
    workers = {"one": one, "two": two}
    first = scene.who_was_called(**workers)
    assert scene.claim(workers.pop(first), 1) == ""
    (second,) = workers
    assert scene.who_was_called(**workers) == second
    assert scene.claim(workers[second], 1) == "light"


def test_a_worker_that_drains_is_woken_when_the_heavy_task_is_cancelled(scene: Scene):
    drains = scene.worker()
    push(scene, 1, "a")
    assert scene.claim(drains, 1) == ""
    assert scene.index.remove([scene.tasks["a"]]) == 1
    assert scene.called(drains)
    assert scene.claim(drains, 1) == "light0"


# -- fair queues ---------------------------------------------------------------------------


def test_in_a_fair_queue_the_worker_that_drains_takes_no_turn_of_others(scene: Scene):
    """The turns of others go on meanwhile, and new users come whose names are first."""
    set_limits(scene.index, "default", fair_by="user")
    drains, other = scene.worker(), scene.worker()
    scene.push(task(scene, "heavy", 0, weight=SLOTS, user="m"))
    assert scene.claim(drains, 1) == ""
    for n in range(20):
        scene.push(*(task(scene, f"{user}{n}", 10 + n, user=user) for user in (f"a{n}", f"b{n}", "z")))
        assert scene.claim(other, 1), "another worker goes on"
        assert scene.claim(drains, 1 + n % 7) == ""
    assert scene.claim(drains, SLOTS) == "heavy"


def test_in_a_fair_queue_a_more_urgent_task_comes_first(scene: Scene):
    set_limits(scene.index, "default", fair_by="user")
    drains = scene.worker()
    scene.push(task(scene, "heavy", 0, weight=SLOTS, user="m"))
    assert scene.claim(drains, 1) == ""
    scene.push(task(scene, "urgent", 10, user="m", band=Band.CRITICAL))
    assert scene.called(drains)
    assert scene.claim(drains, 1) == "urgent"


# -- the bound -----------------------------------------------------------------------------


@dataclass
class Fleet:
    """Workers that run tasks of random lengths; time passes in steps."""

    scene: Scene
    workers: list[Hand]
    random: random.Random
    now: int = 0
    running: dict[str, tuple[Hand, int, int]] = field(default_factory=dict)  # task -> worker, weight, end
    numbers: Iterator[int] = field(default_factory=count)

    def step(self, longest: int) -> None:
        """Let tasks end and arrive, and let every worker claim for its free slots."""
        self.now += 1
        ended = [name for name, (_, _, end) in self.running.items() if end <= self.now]
        release(self.scene.index, [(self.scene.tasks[name].id, "default") for name in ended])
        for name in ended:
            del self.running[name]
        new = [next(self.numbers) for _ in range(40)]
        self.scene.index.push([task(self.scene, f"l{n}", 1000 + n, user=f"u{n % 7}") for n in new])
        self.random.shuffle(self.workers)
        for hand in self.workers:
            taken = Counter({hand.id: 0})
            for worker, weight, _ in self.running.values():
                taken[worker.id] += weight
            if free := SLOTS - taken[hand.id]:
                for task_id, _ in self.scene.index.claim(hand.profile, hand.id, free).tasks:
                    name = self.scene.names[task_id]
                    end = self.now + self.random.randint(1, longest)
                    self.running[name] = (hand, self.scene.tasks[name].weight, end)


@pytest.mark.parametrize("fair", [None, "user"])
@pytest.mark.parametrize("seed", range(3))
def test_a_heavy_task_starts_within_the_longest_running_task(scene: Scene, fair: str | None, seed: int):
    """Light tasks arrive for ever, and the other workers go on with them."""
    longest = 12
    set_limits(scene.index, "default", fair_by=fair)
    profile = Profile.of((), ["a"], (), SLOTS)
    fleet = Fleet(scene, [replace(scene.worker(), profile=profile) for _ in range(5)], random.Random(seed))
    for hand in fleet.workers:
        scene.index.register(profile, hand.id)
    for _ in range(longest):
        fleet.step(longest)
    for heavy in ("heavy0", "heavy1"):
        at = fleet.now
        scene.index.push([task(scene, heavy, 0, weight=SLOTS, user="m")])
        while heavy not in fleet.running:
            started = len(fleet.running)
            fleet.step(longest)
            assert fleet.now - at <= longest + 1
            assert started >= SLOTS * 3, "the others stay busy"
    scene.check()


# -- cost ----------------------------------------------------------------------------------


def test_claims_without_heavy_tasks_read_no_reservations(scene: Scene):
    hand = scene.worker()
    scene.push(*(task(scene, f"t{n}", n) for n in range(5)))
    client_of(scene.index).set(f"{scene.index.keys.prefix}:reservations", "not a hash")
    assert scene.index.claim(hand.profile, hand.id, 3).tasks
    assert len(scene.index.claim(hand.profile, hand.id, 3).tasks) == 2
    assert client_of(scene.index).delete(f"{scene.index.keys.prefix}:reservations"), "a claim that reads it deletes it"
