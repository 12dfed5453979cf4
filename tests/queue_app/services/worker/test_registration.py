"""The life of a worker in rows and index: register, heartbeat, deregister."""

import uuid

import pytest

from queue_app.core.records import HeartbeatAnswer, WorkerReport
from queue_app.exceptions import UnknownProfile
from queue_app.index import Profile, get_index
from queue_app.models import Worker
from queue_app.services.worker.registration import WorkerIdentity, change_profile, deregister, register
from queue_app.sql.workers import heartbeat
from tests.support.engine import index_away, put, take
from tests.support.scene import Hand


@pytest.fixture
def identity() -> WorkerIdentity:
    return WorkerIdentity(id=uuid.uuid4(), name="box:1", host="box", pid=1, process_identity="boot/1/1", version="0.1")


PROFILE = Profile.of(["default"], ["a"], ["gpu"])


def test_from_register_to_deregister(engine, identity):
    register(identity, PROFILE, concurrency=3, heartbeat_seconds=7)
    worker = Worker.objects.get()
    assert (worker.id, worker.name, worker.status, worker.concurrency) == (identity.id, "box:1", "active", 3)
    assert (worker.queues, worker.capabilities, worker.task_types) == (["default"], ["gpu"], ["a"])
    assert engine.check().profiles == {PROFILE.id}
    assert heartbeat(identity.id, WorkerReport(draining=False, tasks_done=5)) == HeartbeatAnswer(alive=True)
    assert heartbeat(identity.id, WorkerReport(draining=True, tasks_done=6)).alive
    assert Worker.objects.get().status == "draining"
    deregister(identity.id, PROFILE, tasks_done=8)
    worker = Worker.objects.get()
    assert (worker.status, worker.tasks_done) == ("stopped", 8)
    assert worker.stopped_at is not None
    assert engine.check().profiles == set()
    assert not heartbeat(identity.id, WorkerReport(draining=False, tasks_done=9)).alive


def test_a_heartbeat_of_an_unknown_worker(engine):
    assert heartbeat(uuid.uuid4(), WorkerReport()) == HeartbeatAnswer(alive=False)


def test_registering_twice_keeps_one_row(engine, identity):
    for _ in range(2):
        register(identity, PROFILE, concurrency=3, heartbeat_seconds=7)
    assert Worker.objects.count() == 1


def test_without_the_index_a_worker_is_known_by_its_row(engine, identity):
    with index_away("register"):
        register(identity, PROFILE, concurrency=3, heartbeat_seconds=7)
    put(capabilities=["gpu"])
    hand = Hand(identity.id, PROFILE)
    with pytest.raises(UnknownProfile):
        take(hand)
    get_index().register(PROFILE, identity.id)
    assert len(take(hand)) == 1


def test_a_worker_with_a_new_profile_leaves_its_old_one(engine, identity):
    register(identity, PROFILE, concurrency=3, heartbeat_seconds=7)
    put("new")
    assert get_index().unserved_types(PROFILE) == {"new"}
    learnt = Profile.of(["default"], ["a", "new"], ["gpu"])
    change_profile(identity.id, PROFILE, learnt)
    assert engine.check().profiles == {learnt.id}
    assert Worker.objects.get().task_types == ["a", "new"]
    assert len(take(Hand(identity.id, learnt))) == 1
    assert get_index().unserved_types(learnt) == set()
