"""compare.lua: which queued rows are not where they belong, told without changing anything."""

import struct

import pytest

from queue_app.core.priorities import Band
from queue_app.core.records import PackedLane, TaskRef
from queue_app.index.comparison import CHUNK
from tests.support.scene import Scene


def packed(*tasks: TaskRef, off: float = 0.0) -> list[PackedLane]:
    """Return the rows of the tasks as the database packs them; ``off`` is an error of the place in milliseconds."""
    lanes: dict[str, list[TaskRef]] = {}
    for task in tasks:
        lanes.setdefault(task.lane, []).append(task)
    return [
        PackedLane(lane, b"".join(t.id.bytes for t in found), b"".join(struct.pack(">d", t.score + off) for t in found))
        for lane, found in lanes.items()
    ]


# pushed, leased, rows that are compared -> named as misplaced
COMPARISONS = {
    "all stand right": ("x y", "", "x y", ""),
    "one is missing": ("x", "", "x y", "y"),
    "all are missing": ("", "", "x y", "x y"),
    "leased: its claim is being decided": ("x", "y", "x y", ""),
    "no rows": ("x", "", "", ""),
}


@pytest.mark.parametrize("case", COMPARISONS)
def test_compare(scene: Scene, case: str):
    pushed, leased, rows, wrong = (names.split() for names in COMPARISONS[case])
    tasks = {"x": scene.task("x", 1), "y": scene.task("y", 2.345, queue="q", needs=["gpu"])}
    scene.index.push([tasks[name] for name in pushed])
    scene.index.restore_leases([(tasks[name].id, tasks[name].lane) for name in leased])
    before = scene.check()
    assert scene.index.misplaced(packed(*(tasks[name] for name in rows))) == [tasks[name].id for name in wrong]
    assert scene.check() == before


@pytest.mark.parametrize(
    ("band", "at", "stands_right"),
    [(Band.NORMAL, 1.0, True), (Band.HIGH, 1.0, False), (Band.LOW, 1.0, False), (Band.NORMAL, 1.1, False)],
)
def test_a_place_that_is_not_the_rows(scene: Scene, band: Band, at: float, stands_right: bool):
    scene.index.push([scene.task("x", at, band=band)])
    row = scene.task("x", 1.0)
    assert scene.index.misplaced(packed(row)) == ([] if stands_right else [row.id])


@pytest.mark.parametrize("off", [-0.008, 0.008])
def test_the_last_bit_is_the_databases_rounding(scene: Scene, off: float):
    row = scene.task("x", 1.0)
    scene.index.push([row])
    assert scene.index.misplaced(packed(row, off=off)) == []


def test_a_promoted_task_stands_right_and_so_does_one_that_is_to_be(scene: Scene):
    """The tasks of the scene are so old that any threshold is passed."""
    risen, waits = scene.task("x", 1, band=Band.LOW), scene.task("y", 2, band=Band.LOW)
    scene.index.push([waits])
    scene.index.set_thresholds({Band.LOW: 60.0})
    scene.index.push([risen])
    assert scene.index.misplaced(packed(risen, waits)) == []


def test_a_task_that_stands_higher_than_its_age_allows_is_told(scene: Scene):
    row = scene.task("x", 1, band=Band.LOW)
    scene.index.push([scene.task("x", 1, band=Band.NORMAL)])
    row = scene.task("x", 1, band=Band.LOW)
    assert scene.index.misplaced(packed(row)) == [row.id]


def test_more_than_one_call(scene: Scene):
    tasks = [scene.task(f"t{n}", n, kind=f"k{n % 3}") for n in range(3 * CHUNK + 5)]
    missing = tasks[:: CHUNK // 2]
    scene.index.push([task for task in tasks if task not in missing])
    assert sorted(scene.index.misplaced(packed(*tasks))) == sorted(task.id for task in missing)
