"""stats.lua: counts all queues, or one."""

import random
from datetime import timedelta

import pytest

from queue_app.core.priorities import Band
from tests.support.scene import START, Scene


def test_an_empty_index_is_missing_and_has_no_leader(index):
    stats = index.stats()
    assert (stats.generation, stats.state, stats.leader_lapses) == (0, "missing", None)
    assert (stats.counts, stats.queues) == ({}, [])


def test_counts_of_all_queues_equal_the_counts_of_each(scene: Scene):
    chance = random.Random(5)
    scene.push(
        *(
            scene.task(
                f"t{n}",
                chance.randrange(10_000),
                band=chance.choice(list(Band)),
                queue=chance.choice(["default", "mail", "q"]),
                kind=chance.choice("abc"),
                needs=chance.choice([(), ("gpu",)]),
            )
            for n in range(300)
        )
    )
    scene.claim(scene.worker("a b"), 20)
    stats = scene.index.stats()
    assert (stats.generation, stats.state) == (1, "ready")
    assert [queue.queue for queue in stats.queues] == ["default", "mail", "q"]
    assert stats.queues == [scene.index.depth(queue.queue) for queue in stats.queues]
    assert sum(queue.active for queue in stats.queues) == 20


def test_many_lanes_take_several_calls(scene: Scene):
    scene.index.push(scene.task(f"t{n}", n, kind=f"k{n % 4000}", queue=f"q{n % 3}") for n in range(12_000))
    stats = scene.index.stats()
    assert [(queue.queue, queue.total) for queue in stats.queues] == [("q0", 4000), ("q1", 4000), ("q2", 4000)]


def test_the_leader_and_the_counters(scene: Scene):
    scene.index.lock("scheduler", "me", 15)
    scene.index.count({"due": 2, "worker:dead": 1})
    scene.index.count({"due": 3})
    stats = scene.index.stats()
    assert 0 < stats.leader_lapses <= 15
    assert stats.counts == {"due": 5, "worker:dead": 1}


def test_depth_counts_by_band_over_all_lanes(scene: Scene):
    scene.push(
        scene.task("a", 5, band=Band.HIGH),
        scene.task("b", 3, band=Band.HIGH, kind="b"),
        scene.task("c", 9, band=Band.BACKGROUND, needs=["gpu"]),
        scene.task("elsewhere", 1, queue="q"),
    )
    depth = scene.index.depth("default")
    assert depth.counts == dict.fromkeys(Band, 0) | {Band.HIGH: 2, Band.BACKGROUND: 1}
    assert depth.oldest == {
        Band.HIGH: START + timedelta(milliseconds=3),
        Band.BACKGROUND: START + timedelta(milliseconds=9),
    }
    assert (depth.total, depth.active) == (3, 0)


def test_depth_of_an_empty_or_unknown_queue(scene: Scene):
    depth = scene.index.depth("never heard of")
    assert (depth.total, depth.active, depth.oldest) == (0, 0, {})


def test_depth_over_more_lanes_than_one_call_looks_at(scene: Scene):
    scene.push(*(scene.task(f"t{n}", n, kind=f"k{n}") for n in range(1234)))
    assert scene.index.depth("default").total == 1234


# -- position.lua: the place of a waiting task in its queue ------------------------------------------


@pytest.mark.parametrize(
    ("name", "position"), [("first", 1), ("second", 2), ("third", 3), ("other queue", 1), ("not there", None)]
)
def test_position_counts_over_the_lanes_of_the_queue(scene: Scene, name: str, position: int | None):
    waiting = [
        scene.task("third", 1, band=Band.LOW),
        scene.task("first", 7, kind="b"),
        scene.task("second", 8, needs=["gpu"]),
        scene.task("other queue", 0, queue="q"),
    ]
    scene.push(*waiting)
    assert scene.index.position(scene.tasks.get(name) or scene.task(name)) == position


def test_a_leased_task_has_no_position(scene: Scene):
    scene.push(scene.task("x"))
    scene.claim(scene.worker())
    assert scene.index.position(scene.tasks["x"]) is None
