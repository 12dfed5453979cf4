"""push.lua: puts queued tasks at their places, in every state of the index, and is idempotent."""

from queue_app.core.priorities import Band
from queue_app.index import Index
from tests.support.scene import Scene


def test_a_task_is_stored_with_its_score_to_the_last_digit(scene: Scene):
    task = scene.task("x", 123_456_789.123, band=Band.BACKGROUND)
    scene.push(task)
    assert scene.check().lanes == {task.lane: {task.id: task.score}}


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
