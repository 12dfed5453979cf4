"""Members that cannot be read are removed and counted; they never raise an error."""

import uuid

import pytest

from queue_app import signals
from queue_app.exceptions import IndexDamaged
from queue_app.index import Index
from queue_app.index.client import is_damage, redis
from tests.support.index_state import client_of
from tests.support.scene import Scene

JUNK = (b"junk", b"\xff\xfe", b"")
LANE = "default\x1fa\x1f"


@pytest.fixture
def counted(index: Index, hear):
    """How many members were removed, as the log and the metrics tell."""
    heard = hear(signals.index_repaired, "kind", "count")

    def total() -> int:
        assert {kind for kind, _ in heard} <= {"unreadable"}
        number = sum(count for _, count in heard)
        assert index.stats().counts.get("repair:unreadable", 0) == number
        return number

    return total


def test_a_claim_keeps_the_tasks_beside_junk_and_frees_its_slots(scene: Scene, counted):
    index = scene.index
    hand = scene.worker()
    scene.push(scene.task("x"), scene.task("y", 1))
    client_of(index).zadd(f"{index.keys.prefix}:lane:{LANE}", dict.fromkeys(JUNK, 0))
    proposal = index.claim(hand.profile, hand.id, 10)
    assert [scene.names[task_id] for task_id, _ in proposal.tasks] == ["x", "y"]
    assert scene.leased() == {"x", "y"}
    assert counted() == len(JUNK)


def test_leases(scene: Scene, counted):
    index, keys = scene.index, scene.index.keys
    scene.push(scene.task("x"))
    scene.claim(scene.worker())
    strange = uuid.uuid4().bytes
    client_of(index).zadd(keys.queue_leases("default"), {**dict.fromkeys(JUNK, 5), strange: "inf"})
    client_of(index).hset(keys.leases, mapping=dict.fromkeys(JUNK, b"\xff"))
    found = list(index.leases("default"))
    assert [scene.names[lease.id] for lease in found] == ["x"]
    assert index.incomplete_leases({lease.id for lease in found}) == []
    assert scene.leased() == {"x"}
    assert counted() == len(JUNK) + 1


def test_lanes_queues_and_limits(scene: Scene, counted):
    index, keys = scene.index, scene.index.keys
    scene.push(scene.task("x"))
    client_of(index).sadd(keys.lanes("default"), b"\xff")
    client_of(index).sadd(keys.queues, b"\xff")
    client_of(index).sadd(keys.limits, b"\xff", b"")
    client_of(index).zadd(f"{keys.prefix}:lane:{LANE}", dict.fromkeys(JUNK, 0))
    assert index.queues() == ["default"]
    assert dict(index.lane_sizes()) == {LANE: 1 + len(JUNK)}
    assert index.limited() == {""}
    assert index.entries(LANE) == (0, [(LANE, scene.tasks["x"].id)])
    assert counted() == 3 + len(JUNK)
    scene.check()


def test_workers(scene: Scene, counted):
    hand = scene.worker()
    client_of(scene.index).sadd(scene.index.keys.profile(hand.profile.id, "workers"), *JUNK)
    assert scene.index.registered() == [(hand.profile.id, hand.id)]
    assert counted() == len(JUNK)


def test_a_counter_that_is_no_number_begins_again(scene: Scene):
    client_of(scene.index).hset(f"{scene.index.keys.prefix}:counters", mapping={"repair:limits": b"\xff", b"\xff": "x"})
    assert scene.index.stats().counts == {}
    scene.index.count({"repair:limits": 2})
    assert scene.index.stats().counts == {"repair:limits": 2}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("WRONGTYPE Operation against a key holding the wrong kind of value script: 1f, on @user_script:12.", True),
        ("user_script:12: attempt to compare nil with number script: 1f, on @user_script:12.", True),
        ("hash value is not an integer script: 1f, on @user_script:12.", True),
        ("Error running script (call to f_1f): @user_script:12: user_script:12: attempt to index a nil value", True),
        ("Error running script (call to f_1f): @user_script:12: -OOM command not allowed", False),
        ("MISCONF Redis is configured to save RDB snapshots script: 1f, on @user_script:12.", False),
        ("unknown command", False),
    ],
)
def test_which_errors_mean_damage(text: str, expected: bool):
    assert is_damage(redis.ResponseError(text)) is expected
    assert not is_damage(redis.exceptions.OutOfMemoryError(text))


def test_a_key_of_the_wrong_type_is_damage(scene: Scene):
    hand = scene.worker()
    scene.push(scene.task("x"))
    client_of(scene.index).set(scene.index.keys.leases, "junk")
    with pytest.raises(IndexDamaged):
        scene.index.claim(hand.profile, hand.id, 1)
