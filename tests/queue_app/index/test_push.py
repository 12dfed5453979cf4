"""push.lua: puts queued tasks at their places, in every state of the index, and is idempotent."""

import pytest

from queue_app.core.priorities import Band
from queue_app.index import Index
from tests.support.leases import restore
from tests.support.scene import Scene

# given in the lanes, given as leases, pushed -> changed, waiting afterwards
PUSHES = {
    "new": ((), (), ("x",), 1, {"x"}),
    "several": ((), (), ("x", "y"), 2, {"x", "y"}),
    "again": (("x",), (), ("x",), 0, {"x"}),
    "one of two is new": (("x",), (), ("x", "y"), 1, {"x", "y"}),
    "leased: its claim is being decided": ((), ("x",), ("x",), 0, set()),
    "one of two is leased": ((), ("x",), ("x", "y"), 1, {"y"}),
    "nothing": (("x",), (), (), 0, {"x"}),
}


@pytest.mark.parametrize("case", PUSHES)
def test_push(scene: Scene, case: str):
    given, leased, pushed, changed, waiting = PUSHES[case]
    tasks = {"x": scene.task("x", 1), "y": scene.task("y", 2, queue="q")}
    scene.index.push([tasks[name] for name in given])
    restore(scene.index, [(tasks[name].id, tasks[name].queue) for name in leased])
    assert scene.push(*(tasks[name] for name in pushed)) == changed
    assert scene.waiting() == waiting


def test_a_task_is_stored_with_its_score_to_the_last_digit(scene: Scene):
    task = scene.task("x", 123_456_789.123, band=Band.BACKGROUND)
    scene.push(task)
    assert scene.check().lanes == {task.lane: {task.id: task.score}}


@pytest.mark.parametrize(("band", "order"), [(Band.CRITICAL, "y x"), (Band.BACKGROUND, "x y")])
def test_a_new_score_moves_the_task(scene: Scene, band: Band, order: str):
    """Reprioritising, and promotion later on: the same id with another score."""
    scene.push(scene.task("x", 1), scene.task("y", 2))
    assert scene.push(scene.task("y", 2, band=band)) == 1
    assert scene.claim(scene.worker(), 2) == order


def test_of_two_scores_in_one_push_the_later_one_counts(scene: Scene):
    """Enqueued and reprioritised in one transaction."""
    first = scene.task("x", 1)
    last = scene.task("x", 1, band=Band.HIGH)
    scene.push(first, last)
    assert scene.check().lanes[last.lane] == {last.id: last.score}


def test_more_than_one_batch(scene: Scene):
    tasks = [scene.task(f"t{n}", n, kind=f"k{n % 3}") for n in range(1203)]
    assert scene.push(*tasks) == 1203
    assert scene.push(*tasks) == 0
    assert len(scene.waiting()) == 1203


def test_a_push_before_there_is_a_generation_is_kept(index: Index):
    scene = Scene(index)
    scene.push(scene.task("x"))
    assert scene.waiting() == {"x"}
