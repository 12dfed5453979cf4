"""Slots that find their own number: what is decided, and what a worker does with it."""

import itertools
import random
import time
from collections.abc import Callable
from contextlib import suppress

import pytest
from django.db import OperationalError

from queue_app.exceptions import InvalidTaskData
from queue_app.models import Worker
from queue_app.workers import auto_slots, resources, slot_watch
from queue_app.workers.auto_slots import Seen, SlotRange, SlotState, parse_concurrency, profile_slots, step
from queue_app.workers.options import WorkerOptions
from queue_app.workers.pools.base import Pool
from tests.support.engine import put_many
from tests.support.waiting import until
from tests.workers import chores
from tests.workers.pools.stand import opened, outcomes, threads_of
from tests.workers.stage import QUICK
from tests.workers.test_executor import claimed

CORES, BOUNDS = 4.0, SlotRange(1, 50)


def waits(slots: int) -> Seen:
    """What tasks show that wait 0.3 s for another service."""
    return Seen(slots, 1.0, wanted=0.01 * slots, late=0.001, ended=3 * slots)


def waits_in_vain(slots: int) -> Seen:
    """What tasks show whose service takes 12 calls at once, and lets others wait."""
    return Seen(slots, 1.0, wanted=0.1, late=0.001, ended=3 * min(slots, 12))


def computes_in_threads(slots: int) -> Seen:
    """What pure Python shows: one core, and 5 ms for each thread until it has its turn."""
    return Seen(slots, 1.0, wanted=1.02, late=0.005 * slots, ended=60)


def computes_in_processes(slots: int) -> Seen:
    """What processes show that compute: each wants a core."""
    return Seen(slots, 1.0, wanted=float(slots), late=0.001, ended=40 * min(slots, 4))


def half_computes(slots: int) -> Seen:
    """What threads show that compute half of their time."""
    return Seen(
        slots, 1.0, wanted=min(1.02, 0.5 * slots), late=0.0025 * slots if slots > 1 else 0.001,
        ended=(0, 30, 50, 58)[min(slots, 3)],
    )  # fmt: skip


def hungry(slots: int) -> Seen:
    """What tasks show that take 4 % of the memory each; 10 % belongs to others."""
    return Seen(slots, 1.0, wanted=0.1, late=0.001, ended=2 * slots, memory=0.1 + 0.04 * slots, slot_memory=0.04)


def noisy(seen: Seen, rng: random.Random) -> Seen:
    """Another sample of the same: each measurement varies by a factor."""
    wanted, late, ended = (
        value * rng.lognormvariate(0, sigma)
        for value, sigma in ((seen.wanted, 0.15), (seen.late, 0.5), (seen.ended, 0.1))
    )
    return seen._replace(wanted=wanted, late=late, ended=round(ended), short=rng.choice([1.0, 1.0, 0.8]))


def run(look: Callable[[int], Seen], seconds: int = 120, first: int = 5, bounds: SlotRange = BOUNDS) -> list[int]:
    """Return the number of slots after each second."""
    state, found = SlotState(first), []
    for now in range(seconds):
        state = step(state, bounds, look(state.slots), CORES, float(now))
        found.append(state.slots)
    return found


@pytest.mark.parametrize(
    ("look", "least", "most"),
    [
        pytest.param(waits, 50, 50, id="waiting"),
        pytest.param(waits_in_vain, 8, 20, id="waiting for a service that is full"),
        pytest.param(computes_in_threads, 1, 2, id="computing in threads"),
        pytest.param(computes_in_processes, 4, 5, id="computing in processes"),
        pytest.param(half_computes, 2, 4, id="half of both"),
        pytest.param(hungry, 15, 18, id="memory"),
    ],
)
@pytest.mark.parametrize("first", [1, 5, 50])
def test_where_it_settles(look, least, most, first):
    if first == 50 and look is waits_in_vain:
        least, most = 50, 50  # nothing says that fewer would do: they only wait
    found = run(look, first=first)[60:]
    steady = [slots for slots in found if least <= slots <= most]
    assert len(steady) >= 0.9 * len(found), found
    assert max(found) <= 1.5 * most + 1, "a number that was too high is only tried"


@pytest.mark.parametrize(
    ("look", "least", "most"),
    [
        (waits, 45, 50),
        (computes_in_threads, 1, 2),
        (computes_in_processes, 3, 5),
        (half_computes, 2, 5),
        (hungry, 15, 19),
    ],
)
@pytest.mark.parametrize("seed", [0, 1, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (2, 3, 4))])
def test_noise_does_not_make_it_swing(look, least, most, seed):
    rng = random.Random(seed)
    found = run(lambda slots: noisy(look(slots), rng), seconds=1200)[120:]
    within = sum(least <= slots <= most for slots in found) / len(found)
    assert within >= 0.9, found
    changes = sum(one != other for one, other in itertools.pairwise(found))
    assert changes <= 30, "steps that did not pay are tried ever less often"


@pytest.mark.parametrize(
    "seen",
    [
        pytest.param(Seen(2.0, 1.0, 0.1, 0.001, ended=9), id="slots are free"),
        pytest.param(Seen(5.0, 0.0, 0.1, 0.001, ended=9), id="nothing waits"),
        pytest.param(Seen(5.0, 1.0, 3.7, 0.001, ended=9), id="the cores are in use"),
        pytest.param(Seen(0.0, 0.0, 0.0, 0.001), id="idle"),
    ],
)
def test_it_stays(seen):
    assert set(run(lambda _: seen)) == {5}


def test_long_tasks_are_judged_slowly():
    found = run(lambda slots: Seen(slots, 1.0, 0.1, 0.001, ended=0))
    assert found[:16] == [5] * 16
    assert found[-1] > 20, "nothing ends that would say that more do not pay"


def test_it_falls_no_further_while_more_runs_than_it_allows():
    assert min(run(lambda _: Seen(10, 1.0, 1.0, 0.05, ended=0), first=10)) == 8, "ten long tasks still run"


def test_a_range_is_kept():
    assert set(run(waits, bounds=SlotRange(3, 7))[30:]) == {7}
    assert min(run(computes_in_threads, bounds=SlotRange(3, 7))[30:]) == 3


@pytest.mark.parametrize(
    ("text", "pool", "wanted"),
    [
        ("8", "threads", 8),
        ("auto", "threads", SlotRange(1, 50)),
        ("auto", "async", SlotRange(1, 500)),
        ("auto:2-30", "processes", SlotRange(2, 30)),
    ],
)
def test_the_option(text, pool, wanted):
    assert parse_concurrency(text, pool) == wanted


@pytest.mark.parametrize("text", ["many", "auto:", "auto:5", "auto:2-", "auto:-3", "automatic", "--1", "2.5", "8:9"])
def test_what_is_no_option(text):
    with pytest.raises(InvalidTaskData, match="auto"):
        parse_concurrency(text, "threads")


@pytest.mark.parametrize("bounds", [(0, 5), (6, 5), (1, 1001)])
def test_a_range_that_makes_no_sense(bounds):
    with pytest.raises(InvalidTaskData):
        WorkerOptions(auto=SlotRange(*bounds))


def test_processes_need_linux(monkeypatch):
    monkeypatch.setattr(auto_slots.Path, "exists", lambda _: False)
    with pytest.raises(InvalidTaskData, match="needs Linux"):
        parse_concurrency("auto", "processes")


def test_profiles_are_shared():
    assert [profile_slots(slots) for slots in (0, 1, 4, 5, 19, 49, 50, 1000)] == [1, 1, 2, 5, 10, 20, 50, 1000]


def test_the_memory_and_the_cores_of_this_machine():
    used, total = resources.memory()
    assert 0 < used < total
    assert resources.cores() > 0


def test_the_clock_sees_own_work():
    clock = resources.CpuClock(list)
    began = time.process_time()
    while time.process_time() < began + 0.1:
        pass
    assert clock.since() >= 0.09
    assert clock.since() < 0.05


# -- pools ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "task"), [("threads", chores.naps), ("async", chores.anaps), ("processes", chores.naps)]
)
def test_a_pool_runs_as_many_as_it_has_slots(kind, task):
    with opened(kind) as pool:
        pool.submit([claimed(task, 0.3) for _ in range(8)])
        until(lambda: len(pool.running()) == 1, "slots")
        pool.resize(4)
        until(lambda: len(pool.running()) == 4, "slots")
        pool.resize(2)
        assert len(pool.running()) in {3, 4}, "what runs is not interrupted"
        until(lambda: len(pool.running()) == 2, "slots")
        outcomes(pool, 8)
        until(lambda: _slots(pool) == 2, "slots")
        assert pool.lateness(0.001) < 1


def _slots(pool: Pool) -> int:
    """Return how many threads or processes a pool has."""
    if pool.name == "threads":
        return sum(thread.is_alive() for thread in threads_of(pool))
    return len(pool.pids) if pool.name == "processes" else pool.slots


def test_a_blocked_event_loop_is_late():
    with opened("async") as pool:
        pool.submit([claimed(chores.stalls, 0.4)])
        until(lambda: len(pool.running()) == 1, "slots")
        assert pool.lateness(0.05) > 0.1
        outcomes(pool)


# -- the worker -----------------------------------------------------------------------


def test_the_worker_has_the_slots_that_were_decided(hire):
    worker = hire(concurrency=2, auto=SlotRange(1, 50))
    put_many(20, QUICK)
    worker.run_once()
    before = worker.profile
    assert (len(worker.pool.begun), before.slots) == (2, 2)
    worker.auto_slots.state = SlotState(7)
    worker.run_once()
    worker.beat()
    row = Worker.objects.get(pk=worker.id)
    assert (len(worker.pool.begun), row.concurrency) == (7, 7)
    assert (row.profile, worker.profile.slots) == (worker.profile.id, 5), "the index knows it under the new profile"
    worker.auto_slots.state = SlotState(3)
    worker.end(2)
    worker.beat()
    assert len(worker.pool.begun) == 5, "two ended and nothing was claimed"
    assert Worker.objects.get(pk=worker.id).concurrency == 5, "never fewer than run"
    assert worker.until_empty() == 20


def test_a_change_is_tried_again_after_an_outage(hire):
    worker = hire(concurrency=2, auto=SlotRange(1, 50))
    worker.auto_slots.state = SlotState(10)
    with worker.without("change_profile"), suppress(OperationalError):
        worker.run_once()
    assert (worker.claimer.slots, worker.profile.slots) == (2, 2)
    worker.later(10)
    worker.run_once()
    assert (worker.claimer.slots, worker.profile.slots, worker.pool.slots) == (10, 10, 10)


def test_it_decides_by_its_samples(hire, monkeypatch, clock):
    worker = hire(concurrency=2, auto=SlotRange(1, 50))
    monkeypatch.setattr(worker.pool, "lateness", lambda _: 0.0, raising=False)
    monkeypatch.setattr(slot_watch, "memory", lambda: (1, 10**12))
    put_many(20, QUICK)
    worker.run_once()
    watch = worker.auto_slots
    clock.now += 60
    for _ in range(5):
        watch.sample()
    monkeypatch.setattr(resources.CpuClock, "since", lambda _: 0.0)
    watch.decide()
    assert watch.state.seen == (), "it has settled"
    clock.now += 60
    watch.sample()
    watch.decide()
    assert watch.slots == 4, "all slots are in use, tasks wait, and little CPU is used"
    worker.run_once()
    assert len(worker.pool.begun) == 4
