"""promote.lua: aged tasks rise, a push agrees with that, and nothing else moves."""

from datetime import timedelta

import pytest

from queue_app.core.limits import score
from queue_app.core.priorities import Band, effective_band, steps_of
from tests.support.index_state import band_of
from tests.support.leases import restore
from tests.support.scene import START, Scene

CRITICAL, HIGH, NORMAL, LOW, BACKGROUND = Band
THRESHOLDS = {NORMAL: 1200.0, LOW: 600.0, BACKGROUND: 600.0}


class AgingScene(Scene):
    """Tasks by their age in seconds."""

    def aged(self, name: str, age: float, band: Band, **options: object):
        now = self.index.now() / 1000 - START.timestamp() * 1000
        return self.task(name, now - age * 1000, band=band, **options)

    def standing(self) -> dict[str, Band]:
        """Return the band that each task stands in."""
        lanes = self.check().lanes.values()
        return {self.names[task_id]: band_of(place) for lane in lanes for task_id, place in lane.items()}

    def push_young(self, *tasks) -> None:
        """Push tasks as of a time at which none was aged: without thresholds nothing rises."""
        self.index.set_thresholds({})
        self.push(*tasks)
        self.index.set_thresholds(THRESHOLDS)


@pytest.fixture
def aging(index) -> AgingScene:
    scene = AgingScene(index).open()
    assert index.set_thresholds(THRESHOLDS)
    return scene


def test_python_and_lua_agree(aging):
    ages = [n * 97.3 for n in range(30)]
    tasks = [aging.aged(f"{own.label}{n}", age, own) for own in Band for n, age in enumerate(ages)]
    aging.push(*tasks)
    now = START + timedelta(microseconds=aging.index.now() - START.timestamp() * 1e6)
    assert aging.standing() == {
        aging.names[task.id]: effective_band(Band(task.priority), task.queued_at, now, THRESHOLDS) for task in tasks
    }


def test_a_promoted_task_stands_where_one_of_that_band_would(aging):
    """To the last digit that a score has in the band it comes from."""
    task = aging.aged("x", 2400, BACKGROUND)
    aging.push(task)
    place = aging.check().lanes[task.lane][task.id]
    assert abs(place - score(HIGH, task.queued_at)) <= 0.008


def test_inside_the_band_the_time_of_queueing_counts(aging):
    hand = aging.worker("a b")
    aging.push(
        aging.aged("young high", 0, HIGH),
        aging.aged("old high", 2000, HIGH, kind="b"),
        aging.aged("low", 1900, LOW),
        aging.aged("older low", 2100, LOW, kind="b"),
        aging.aged("critical", 0, CRITICAL),
        aging.aged("normal", 100, NORMAL),
    )
    names = [aging.claim(hand) for _ in range(6)]
    assert names == ["critical", "older low", "old high", "low", "young high", "normal"]


@pytest.mark.parametrize("given", ["leased", "gone", "another time", "another lane"])
def test_a_task_that_does_not_wait_at_its_place_is_left_alone(aging, given):
    task = aging.aged("x", 2000, LOW)
    if given == "leased":
        restore(aging.index, [(task.id, task.queue)])
    elif given == "another time":  # retried meanwhile
        aging.push_young(aging.aged("x", 10, NORMAL))
    elif given == "another lane":
        aging.push_young(aging.aged("x", 2000, LOW, kind="b"))
    before = aging.check()
    assert steps_of(aging.index.promote([task])) == {}
    assert aging.check() == before


def test_no_worker_is_woken(aging):
    """There is no more work than before."""
    hand = aging.worker()
    task = aging.aged("x", 2000, LOW)
    aging.push_young(task)
    aging.rest(hand)
    aging.index.promote([task])
    assert not aging.called(hand)
    aging.push_young(aging.aged("y", 2000, LOW))
    aging.called(hand)
    aging.rest(hand)
    aging.push(aging.tasks["y"])
    assert not aging.called(hand)


def test_depth_and_position_go_by_the_effective_band(aging):
    low, high = aging.aged("low", 1900, LOW), aging.aged("high", 5, HIGH)
    aging.push(low, high, aging.aged("low2", 700, LOW))
    depth = aging.index.depth("default")
    assert {band: count for band, count in depth.counts.items() if count} == {HIGH: 2, NORMAL: 1}
    assert abs(depth.oldest[HIGH] - low.queued_at) <= timedelta(milliseconds=1)
    assert (aging.index.position(low), aging.index.position(high)) == (1, 2)


def test_thresholds_are_copied_once(aging):
    assert not aging.index.set_thresholds(THRESHOLDS)
    assert aging.index.set_thresholds(THRESHOLDS | {LOW: None})
    task = aging.aged("x", 9999, BACKGROUND)
    aging.push(task)
    assert aging.standing() == {"x": LOW}  # and there the chain ends
    assert aging.index.set_thresholds({})
    assert not aging.index.set_thresholds({})


def test_counters_survive_a_rebuild(aging):
    task = aging.aged("x", 700, LOW)
    aging.push_young(task)
    aging.index.promote([task])
    aging.index.begin_generation(2)
    assert aging.index.stats().counts == {"promoted:low:normal": 1}
