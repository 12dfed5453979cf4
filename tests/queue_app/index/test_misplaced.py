"""misplaced.lua: finds the queued rows that are not at their places, and changes nothing."""

import random
import struct

import pytest

from queue_app.core.priorities import Band
from queue_app.core.records import PackedLane, TaskRef
from queue_app.index.notifier import CHUNK
from tests.support.leases import restore
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


# pushed, leased, compared rows -> misplaced
COMPARISONS = {
    "all in place": ("x y", "", "x y", ""),
    "one is missing": ("x", "", "x y", "y"),
    "all are missing": ("", "", "x y", "x y"),
    "leased: its claim is being decided": ("x", "y", "x y", ""),
    "no rows": ("x", "", "", ""),
}


@pytest.mark.parametrize("case", COMPARISONS)
def test_misplaced(scene: Scene, case: str):
    pushed, leased, rows, wrong = (names.split() for names in COMPARISONS[case])
    tasks = {"x": scene.task("x", 1), "y": scene.task("y", 2.345, queue="q", needs=["gpu"])}
    scene.index.push([tasks[name] for name in pushed])
    restore(scene.index, [(tasks[name].id, tasks[name].lane) for name in leased])
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


def test_tasks_before_and_after_their_promotion_are_in_place(scene: Scene):
    """The tasks of the scene are older than any threshold."""
    risen, waits = scene.task("x", 1, band=Band.LOW), scene.task("y", 2, band=Band.LOW)
    scene.index.push([waits])
    scene.index.set_thresholds({Band.LOW: 60.0})
    scene.index.push([risen])
    assert scene.index.misplaced(packed(risen, waits)) == []


def test_a_task_above_what_its_age_allows_is_misplaced(scene: Scene):
    row = scene.task("x", 1, band=Band.LOW)
    scene.index.push([scene.task("x", 1, band=Band.NORMAL)])
    row = scene.task("x", 1, band=Band.LOW)
    assert scene.index.misplaced(packed(row)) == [row.id]


def test_more_than_one_call(scene: Scene):
    tasks = [scene.task(f"t{n}", n, kind=f"k{n % 3}") for n in range(3 * CHUNK + 5)]
    missing = tasks[:: CHUNK // 2]
    scene.index.push([task for task in tasks if task not in missing])
    assert sorted(scene.index.misplaced(packed(*tasks))) == sorted(task.id for task in missing)


FAULTS = ("none", "missing", "leased", "late", "early", "lower band", "higher band", "no row", "not risen")


@pytest.mark.parametrize("seed", range(12))
def test_one_range_of_a_lane_finds_the_same_as_single_look_ups(scene: Scene, seed: int):
    """A few misplaced tasks among many that are in place; in the order of their age or not, promoted or not."""
    chance = random.Random(seed)
    rises, in_order, kinds = seed % 2, seed % 3, chance.sample(FAULTS, k=seed % 4)
    count, wrong, rows = 200, [], []
    faults = {chance.randrange(count): kind for kind in kinds} | ({0: kinds[0]} if kinds and seed % 5 == 0 else {})
    for n in range(count):
        row = scene.task(f"t{n}", 1000 + n + n % 3 / 1000, band=Band.LOW)
        match faults.get(n, "none"):
            case "not risen":
                scene.index.push([row])
    if rises:
        scene.index.set_thresholds({Band.LOW: 60.0})
    for n in range(count):
        row = scene.task(f"t{n}", 1000 + n + n % 3 / 1000, band=Band.LOW)
        rows.append(row)
        standing = {
            "none": row,
            "late": scene.task(f"t{n}", 1000.3 + n, band=Band.LOW),
            "early": scene.task(f"t{n}", 999.7 + n, band=Band.LOW),
            "lower band": scene.task(f"t{n}", 1000 + n + n % 3 / 1000, band=Band.BACKGROUND),
            "higher band": scene.task(f"t{n}", 1000 + n + n % 3 / 1000, band=Band.HIGH),
        }
        match faults.get(n, "none"):
            case "missing":
                wrong.append(row.id)
            case "leased":
                restore(scene.index, [(row.id, row.lane)])
            case "no row":
                scene.index.push([rows.pop()])
            case "not risen":
                pass
            case kind:
                scene.index.push([standing[kind]])
                wrong += [row.id] if kind != "none" else []
    if not in_order:
        chance.shuffle(rows)
    assert sorted(scene.index.misplaced(packed(*rows))) == sorted(wrong)


def test_another_task_at_the_place_of_a_missing_one_does_not_hide_it(scene: Scene):
    rows = [scene.task(f"t{n}", n) for n in range(9)]
    scene.index.push([*rows[:4], scene.task("other", 4), *rows[5:]])
    assert scene.index.misplaced(packed(*rows)) == [rows[4].id]
