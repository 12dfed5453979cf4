"""position.lua: the place of a waiting task in its queue."""

import pytest

from queue_app.core.priorities import Band
from tests.support.scene import Scene


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
