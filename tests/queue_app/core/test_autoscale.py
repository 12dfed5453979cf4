"""The demand for workers, by examples: workers with 4 slots, tasks of 2 s, a period of 60 s."""

import pytest

from queue_app.core.autoscale import Headroom, Waiting, demand


def ask(*lanes, gates=(), active_slots=0, mean=2.0, seconds=60.0, slots=4):
    return demand(lanes, gates, active_slots=active_slots, mean=mean, seconds=seconds, slots=slots)


def waiting(count, *gates, weight=1, able=True):
    return Waiting(count, weight, able, gates)


@pytest.mark.parametrize(
    ("count", "active", "desired_slots", "workers"),
    [
        (0, 0, 0, 0),
        (0, 3, 3, 1),  # running tasks keep their workers
        (1, 0, 1, 1),
        (30, 0, 1, 1),  # 60 s of work, in one slot within 60 s
        (31, 0, 2, 1),
        (300, 0, 10, 3),
        (300, 7, 17, 5),
    ],
)
def test_without_limits(count, active, desired_slots, workers):
    found = ask(waiting(count), active_slots=active)
    assert (found.queued, found.runnable, found.backlog_seconds) == (count, count, 2.0 * count)
    assert (found.desired_slots, found.desired_workers) == (desired_slots, workers)


def test_long_tasks_need_one_slot_each():
    assert ask(waiting(5), mean=600).desired_slots == 5
    assert ask(waiting(5, weight=3), mean=600).desired_slots == 15


@pytest.mark.parametrize(
    ("gate", "runnable", "desired_slots"),
    [
        (Headroom(is_closed=True), 0, 0),
        (Headroom(free=0), 0, 0),
        (Headroom(free=-2), 0, 0),  # the cap was lowered below the running tasks
        (Headroom(free=3), 90, 3),
        (Headroom(free=3, is_closed=True), 0, 0),
        (Headroom(rate=0.5), 30, 1),
        (Headroom(rate=0.0001), 1, 1),
        (Headroom(free=3, rate=10), 90, 3),
        (Headroom(), 1000, 34),
    ],
)
def test_tasks_behind_a_limit_need_no_worker(gate, runnable, desired_slots):
    found = ask(waiting(1000, gate), gates=[gate])
    assert (found.queued, found.runnable, found.desired_slots) == (1000, runnable, desired_slots)


def test_lanes_share_a_limit():
    shared, own = Headroom(free=4), Headroom(free=3)
    found = ask(waiting(1000, shared, own), waiting(1000, shared), gates=[shared, own])
    assert (found.runnable, found.desired_slots) == (120, 4)


def test_tasks_that_no_worker_can_run_need_no_worker():
    found = ask(waiting(1000, able=False), waiting(30))
    assert (found.queued, found.runnable, found.desired_workers) == (1030, 30, 1)
