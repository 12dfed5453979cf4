"""Every statement that returns a task returns all columns of its record."""

from queue_app.core.records import ClaimedTask
from queue_app.models import Task
from queue_app.services.lifecycle.claim import give_back
from queue_app.sql import dead_letters, finish, snapshot
from tests.support.dead_letters import make_dead_letter
from tests.support.engine import put, take

OPTIONS = {"concurrency_key": "customer:7", "weight": 2, "user": "ann", "capabilities": ("gpu",)}


def lane_of(task) -> tuple:
    return task.concurrency_key, task.weight, task.user, task.capabilities


def test_a_queued_task(engine):
    [task] = snapshot.refs([put(**OPTIONS)])
    assert lane_of(task) == tuple(OPTIONS.values())


def test_a_replayed_task_keeps_its_lane(engine):
    letter = make_dead_letter(engine.worker(offers=["gpu"]), **(OPTIONS | {"weight": 1}))
    Task.objects.update(weight=2)
    [(letter_id, task)] = dead_letters.replay([letter.id], by="ann")
    assert letter_id == letter.id
    assert lane_of(task) == tuple(OPTIONS.values())


def test_a_held_task_differs_from_the_claimed_one_in_its_payload_only(engine):
    hand = engine.worker(offers=["gpu"])
    put(args=[1], **OPTIONS)
    [claimed] = take(hand, 2)
    [held] = finish.held_by(hand.id, [claimed.key])
    assert isinstance(held, ClaimedTask)
    names = set(ClaimedTask.__slots__) - {"args", "parameters", "trace"}
    assert {name: getattr(held, name) for name in names} == {name: getattr(claimed, name) for name in names}
    assert (claimed.args, held.args) == ("[1]", "[]")
    give_back([claimed])
