"""release.lua, revoke.lua, restore_leases.lua and remove.lua: how leases and entries end."""

import pytest

from queue_app.index import Lease
from tests.support.leases import restore
from tests.support.scene import Scene, set_limits


@pytest.fixture
def busy(scene: Scene) -> Scene:
    """x and y run, z waits."""
    scene.push(scene.task("x", 1), scene.task("y", 2, queue="q"), scene.task("z", 3))
    assert scene.claim(scene.worker(), 2) == "x y"
    return scene


# -- release -------------------------------------------------------------------------


def test_a_slot_is_freed_once_however_often_it_is_released(busy: Scene):
    set_limits(busy.index, "default", max_concurrent=1)
    assert [busy.release("x") for _ in range(3)] == [1, 0, 0]
    hand = busy.worker()
    busy.push(busy.task("v", 4), busy.task("w", 5))
    assert busy.claim(hand, 5) == "z"


def test_more_than_one_batch_of_releases(scene: Scene):
    tasks = [scene.task(f"t{n}", n) for n in range(700)]
    restore(scene.index, [(task.id, task.queue) for task in tasks])
    assert scene.release(*(f"t{n}" for n in range(700))) == 700
    assert scene.leased() == set()


# -- a named lease --------------------------------------------------------------------------


def lease(scene: Scene, name: str, leased_at: int | None = None) -> Lease:
    """Return the lease of a task as the index has it."""
    task = scene.tasks[name]
    found = scene.check().queue_leases[task.queue][task.id]
    return Lease(task.id, task.queue, found if leased_at is None else leased_at)


def test_it_leaves_a_later_lease(busy: Scene):
    """Read, ended, claimed again by another worker, and only then revoked."""
    seen = lease(busy, "x")
    busy.release("x")
    busy.push(busy.tasks["x"])
    assert busy.claim(busy.worker(), 1) == "x"
    assert lease(busy, "x") != seen
    assert busy.index.release([seen]) == 0
    assert "x" in busy.leased()


# -- restore_leases ------------------------------------------------------------------


def test_restore_leases_counts_the_missing_ones(busy: Scene):
    waiting = busy.tasks["z"]
    leases = [lease(busy, name)._replace(lane=busy.tasks[name].lane) for name in "xy"]
    leases.append(Lease(waiting.id, waiting.lane, 7))
    assert busy.index.missing_leases(leases) == [waiting.id]
    assert busy.index.restore_leases(leases) == 1
    assert busy.index.restore_leases(leases) == 0
    assert busy.leased() == {"x", "y", "z"}


def test_a_lease_that_the_row_does_not_name_is_replaced(busy: Scene):
    seen = lease(busy, "x")
    of_the_row = seen._replace(leased_at=seen.leased_at - 1)
    assert busy.index.missing_leases([of_the_row]) == [seen.id]
    assert busy.index.restore_leases([of_the_row]) == 1
    assert lease(busy, "x") == of_the_row


def test_a_queue_that_only_has_leases_is_known(scene: Scene):
    """Otherwise the reconciler would skip its leases, and a leaked one would stay."""
    restore(scene.index, [(scene.task("x", queue="q").id, "q")])
    assert scene.index.queues() == ["q"]


def test_remove_leaves_a_lease_alone(busy: Scene):
    assert busy.index.remove([busy.tasks["x"]]) == 0
    assert busy.leased() == {"x", "y"}
