"""depth.lua and position.lua: what waits, counted by the index."""

from datetime import timedelta

import pytest

from queue_app.core.priorities import Band
from tests.support.scene import START, Scene


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


def test_depth_counts_leases_as_active(scene: Scene):
    scene.push(scene.task("a", 1), scene.task("b", 2))
    assert scene.claim(scene.worker()) == "a"
    depth = scene.index.depth("default")
    assert (depth.total, depth.active) == (1, 1)


def test_depth_of_an_empty_or_unknown_queue(scene: Scene):
    depth = scene.index.depth("never heard of")
    assert (depth.total, depth.active, depth.oldest) == (0, 0, {})


def test_depth_over_more_lanes_than_one_call_looks_at(scene: Scene):
    scene.push(*(scene.task(f"t{n}", n, kind=f"k{n}") for n in range(1234)))
    assert scene.index.depth("default").total == 1234


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
