"""promote.lua: aged tasks rise, a push agrees with that, and nothing else moves."""

from datetime import timedelta

import pytest

from queue_app.core.limits import BAND_WIDTH, score
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


# own band, age -> band afterwards, steps
CASES = {
    "critical stays": (CRITICAL, 9999, CRITICAL, {}),
    "high stays": (HIGH, 9999, HIGH, {}),
    "normal, young": (NORMAL, 1190, NORMAL, {}),
    "normal, aged": (NORMAL, 1200, HIGH, {(NORMAL, HIGH): 1}),
    "low, young": (LOW, 590, LOW, {}),
    "low, one step": (LOW, 600, NORMAL, {(LOW, NORMAL): 1}),
    "low does not rise as normal does": (LOW, 1790, NORMAL, {(LOW, NORMAL): 1}),
    "low, two steps": (LOW, 1800, HIGH, {(LOW, NORMAL): 1, (NORMAL, HIGH): 1}),
    "background, one step": (BACKGROUND, 600, LOW, {(BACKGROUND, LOW): 1}),
    "background, two steps": (BACKGROUND, 1200, NORMAL, {(BACKGROUND, LOW): 1, (LOW, NORMAL): 1}),
    "background, three steps": (BACKGROUND, 2400, HIGH, {(BACKGROUND, LOW): 1, (LOW, NORMAL): 1, (NORMAL, HIGH): 1}),
}


@pytest.mark.parametrize("case", CASES)
def test_promote(aging, case):
    own, age, band, steps = CASES[case]
    task = aging.aged("x", age, own)
    aging.push_young(task)
    assert aging.standing() == {"x": own}
    assert steps_of(aging.index.promote([task])) == steps
    assert aging.standing() == {"x": band}
    assert aging.check().lanes[task.lane][task.id] == task.score - (own - band) * BAND_WIDTH
    assert steps_of(aging.index.promote([task])) == {}
    names = {f"promoted:{one.label}:{other.label}": count for (one, other), count in steps.items()}
    assert aging.index.stats().counts == names


@pytest.mark.parametrize("case", CASES)
def test_a_push_puts_a_task_where_a_promotion_would(aging, case):
    """So a rebuild keeps promotions, and so does a task that its worker gives back."""
    own, age, band, _ = CASES[case]
    task = aging.aged("x", age, own)
    assert aging.push(task) == 1
    assert aging.standing() == {"x": band}
    assert steps_of(aging.index.promote([task])) == {}
    assert aging.index.stats().counts == {}


@pytest.mark.parametrize("case", CASES)
def test_a_push_of_a_waiting_task_is_no_repair(aging, case):
    """Before its promotion the push lifts the task and counts it as promoted; afterwards the task stays."""
    own, age, band, steps = CASES[case]
    aging.worker()  # its heads follow
    task = aging.aged("x", age, own)
    aging.push_young(task)
    assert aging.push(task) == 0
    assert aging.standing() == {"x": band}
    assert sum(aging.index.stats().counts.values()) == sum(steps.values())
    assert aging.push(task) == 0


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


def test_the_heads_follow(aging):
    """A lane and a queue that stood behind come first, for every profile that can run them."""
    hands = [aging.worker(), aging.worker("a b", queues=["p", "q"])]
    low = aging.aged("low", 1900, LOW, queue="q")
    aging.push_young(low, aging.aged("normal", 10, NORMAL, queue="p"))
    aging.index.promote([low])
    assert [aging.claim(hand) for hand in hands] == ["low", "normal"]


def test_of_many_only_the_aged_move(aging):
    tasks = [aging.aged(f"t{n}", 550 + n / 10, LOW, kind=f"k{n % 7}", queue="pq"[n % 2]) for n in range(1000)]
    aging.push_young(*tasks)
    aged = {aging.names[task.id] for n, task in enumerate(tasks) if n >= 500}
    risen_now = aging.index.promote(tasks)
    risen = {name for name, band in aging.standing().items() if band is NORMAL}
    assert aged <= risen
    assert {aging.names[one.task_id] for one in risen_now} == risen
    assert steps_of(risen_now) == {(LOW, NORMAL): len(risen)}
    assert len(risen) - len(aged) <= 100  # tasks that aged while this test ran, 10 s at most


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


def test_a_task_that_was_raised_by_hand_is_not_taken_down(aging):
    """The row was read before it was reprioritised."""
    before = aging.aged("x", 700, BACKGROUND)
    aging.push(before)
    aging.push(aging.aged("x", 700, CRITICAL))
    aging.tasks["x"] = before
    assert steps_of(aging.index.promote([before])) == {}


def test_a_task_that_was_lowered_by_hand_goes_down(aging):
    """Its age counts in the new band; the push undoes no promotion."""
    at = aging.aged("x", 700, NORMAL)
    aging.push(at)
    lowered = type(at)(at.id, at.task_type, at.queue, BACKGROUND, at.capabilities, at.queued_at)
    assert aging.push(lowered) == 1
    assert aging.standing() == {"x": LOW}


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


def test_raised_thresholds_take_promotion_back_with_the_next_push(aging):
    task = aging.aged("x", 700, LOW)
    aging.push(task)
    aging.index.set_thresholds(THRESHOLDS | {LOW: 800.0})
    assert steps_of(aging.index.promote([task])) == {}
    assert aging.standing() == {"x": NORMAL}
    assert aging.push(task) == 1
    assert aging.standing() == {"x": LOW}


def test_counters_survive_a_rebuild(aging):
    task = aging.aged("x", 700, LOW)
    aging.push_young(task)
    aging.index.promote([task])
    aging.index.begin_generation(2)
    assert aging.index.stats().counts == {"promoted:low:normal": 1}
