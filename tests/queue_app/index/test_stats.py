"""stats.lua: counts all queues, or one."""

import random

from queue_app.core.priorities import Band
from tests.support.scene import Scene


def test_an_empty_index_is_missing_and_has_no_leader(index):
    stats = index.stats()
    assert (stats.generation, stats.state) == (0, "missing")
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


def test_the_counters(scene: Scene):
    scene.index.count({"due": 2, "worker:dead": 1})
    scene.index.count({"due": 3})
    assert scene.index.stats().counts == {"due": 5, "worker:dead": 1}


def test_depth_over_more_lanes_than_one_call_looks_at(scene: Scene):
    scene.push(*(scene.task(f"t{n}", n, kind=f"k{n}") for n in range(1234)))
    assert scene.index.depth("default").total == 1234
