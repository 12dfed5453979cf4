"""rebuild: the index is built again from the rows, leases first; claims are refused until it is done."""

from contextlib import contextmanager
from datetime import UTC, datetime

import pytest
from django.db import transaction

from queue_app import signals
from queue_app.exceptions import IndexNotReady, IndexUnavailable, UnknownProfile
from queue_app.index import Generation
from queue_app.index.keys import KINDS
from queue_app.models import IndexGeneration, Queue, RuntimeSettings
from queue_app.services.control.pause import pause
from queue_app.services.control.queues import set_queue_limits
from queue_app.services.lifecycle.finish import finish
from queue_app.services.repair.rebuild import rebuild, rebuild_if_needed
from queue_app.services.repair.reconcile import Reconciler
from queue_app.sql import claim as claim_rows
from queue_app.sql import snapshot
from queue_app.sql.database import atomic
from queue_app.sql.identity import database_identity
from tests.support.damage import by_kind, change_type
from tests.support.engine import (
    Side,
    assert_index_agrees,
    at_once,
    done,
    flush,
    index_away,
    put,
    put_many,
    row,
    somebody_waits_for_a_lock,
    take,
    until,
)

LATER = datetime(2030, 1, 1, tzinfo=UTC)


@pytest.fixture
def full(engine):
    """Tasks of every state, limits of every kind; returns the worker."""
    hand = engine.worker("a b")
    Queue.objects.create(name="q")
    set_queue_limits("q", max_concurrent=2)
    settings = RuntimeSettings.objects.get()
    settings.max_concurrent = 9
    settings.save()
    put_many(3, queue="q")
    put("b", priority="high", capabilities=["g"])
    put_many(4)
    take(hand, 5)
    put(run_after=LATER)
    return hand


def test_nothing_to_do(engine):
    before = engine.index.generation()
    assert rebuild_if_needed() is None
    assert engine.index.generation() == before == Generation(snapshot.generation(), "ready", database_identity())


def test_after_the_loss_of_everything(engine, full):
    before = assert_index_agrees()
    number = snapshot.generation()
    flush(engine)
    rebuilt = rebuild_if_needed()
    after = assert_index_agrees()
    assert (after.lanes, after.leases, after.limits, after.overall) == (
        before.lanes,
        before.leases,
        before.limits,
        before.overall,
    )
    assert (rebuilt.generation, rebuilt.tasks, rebuilt.leases) == (number + 1, len(before.waiting), len(before.leases))
    stored = IndexGeneration.objects.get()
    assert (stored.number, stored.tasks, stored.leases) == (rebuilt.generation, rebuilt.tasks, rebuilt.leases)
    assert stored.ready_at >= stored.started_at


def test_a_rebuild_is_announced(engine):
    heard = []
    signals.index_rebuilt.connect(listener := lambda **event: heard.append((event["generation"], event["tasks"])))
    put_many(2)
    rebuilt = rebuild()
    signals.index_rebuilt.disconnect(listener)
    assert heard == [(rebuilt.generation, 2)]


@pytest.mark.parametrize("why", ["another server run", "another generation than the rows"])
def test_an_existing_index_that_is_outdated(engine, full, why):
    if why == "another server run":
        engine.index._client.hset(f"{engine.index.keys.prefix}:generation", "run_id", "0" * 40)
    else:
        snapshot.raise_generation()
    assert rebuild_if_needed() is not None
    assert_index_agrees()


def test_claims_are_refused_until_leases_limits_and_the_first_tasks_are_back(engine, monkeypatch):
    set_queue_limits("default", max_concurrent=2)
    put_many(5)
    hand = engine.worker()
    take(hand, 2)
    flush(engine)
    refused = []
    plain = engine.index._call

    def try_to_claim(name, *args):
        reply = plain(name, *args)
        if name not in ("claim", "lock"):
            with pytest.raises((IndexNotReady, UnknownProfile)) as refusal:
                take(hand, 5)
            refused.append((name, refusal.type))
        return reply

    monkeypatch.setattr(engine.index, "_call", try_to_claim)
    rebuild()
    monkeypatch.undo()
    opened = [name for name, _ in refused].index("open_generation")
    assert {error for _, error in refused[:opened]} == {IndexNotReady}
    assert {name for name, _ in refused[:opened]} >= {"set_limits", "restore_leases", "push"}
    assert {error for _, error in refused[opened:]} == {UnknownProfile}, "the worker has to register again"
    engine.index.register(hand.profile, hand.id)
    assert take(hand, 5) == [], "the cap holds from the first claim on"
    assert len(engine.check().leases) == 2


def test_tasks_that_are_enqueued_meanwhile_are_not_lost(engine, monkeypatch):
    put_many(3)
    plain = engine.index._call
    added = []

    def enqueue_meanwhile(name, *args):
        if name != "push" and len(added) < 30:
            added.append(None)
            with monkeypatch.context() as patch:
                patch.setattr(engine.index, "_call", plain)
                put_many(1, queue=f"q{len(added)}")
        return plain(name, *args)

    with monkeypatch.context() as patch:
        patch.setattr(engine.index, "_call", enqueue_meanwhile)
        assert rebuild() is not None
    assert len(added) >= 5
    assert len(assert_index_agrees().waiting) == 3 + len(added)


def test_tasks_that_end_meanwhile_leak_no_slot_for_long(engine, monkeypatch):
    put()
    [task] = take(engine.worker())
    plain = snapshot.executing

    def read_then_finish():
        found = plain()
        finish([done(task)])
        return found

    with monkeypatch.context() as patch:
        patch.setattr(snapshot, "executing", read_then_finish)
        rebuild()
    assert engine.check().leases == {task.id}
    assert Reconciler().run_once()["leases_ended"] == 1
    assert_index_agrees()


def test_only_one_rebuilds_at_a_time(engine):
    assert engine.index.lock("rebuild", "another process", 9)
    assert rebuild() is None
    engine.index.lock("rebuild", "another process", 0)
    assert rebuild() is not None
    put_many(20)
    flush(engine)
    at_once([rebuild_if_needed for _ in range(4)])
    rebuild_if_needed()
    assert_index_agrees()
    assert engine.index.generation() == Generation(snapshot.generation(), "ready", database_identity())


# -- a rebuild that dies -----------------------------------------------------------------------

STEPS = [
    "begin_generation", "load_until", "wipe", "restore_leases", "set_limits", "push", "open_generation",
    "finish_generation",
]  # fmt: skip


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("step", STEPS)
def test_a_rebuild_that_dies_leaves_an_index_that_refuses_claims(engine, full, monkeypatch, step, when):
    pause("q")
    plain = engine.index._call

    def die(name, *args):
        if name == step and when == "before":
            raise IndexUnavailable("died")
        reply = plain(name, *args)
        if name == step:
            raise IndexUnavailable("died")
        return reply

    with monkeypatch.context() as patch:
        patch.setattr(engine.index, "_call", die)
        with pytest.raises(IndexUnavailable):
            rebuild()
    ready = engine.index.generation().state == "ready"
    if (step, when) == ("finish_generation", "after"):
        assert ready, "it was complete"
        assert_index_agrees()
    elif (step, when) == ("begin_generation", "before"):
        assert ready, "the index does not know of it yet, but the rows refuse what it proposes"
        with pytest.raises(IndexNotReady):
            take(full, 2)
    else:
        with pytest.raises(IndexNotReady):
            take(full, 2)
    monkeypatch.undo()
    if (step, when) != ("finish_generation", "after"):
        assert rebuild_if_needed() is not None
    assert engine.index.generation() == Generation(snapshot.generation(), "ready", database_identity())
    assert_index_agrees()


def test_an_index_lost_again_during_the_rebuild_is_not_opened(engine, full, monkeypatch):
    plain = engine.index.finish_generation

    def lose_first(number):
        flush(engine)
        return plain(number)

    with monkeypatch.context() as patch:
        patch.setattr(engine.index, "finish_generation", lose_first)
        assert rebuild() is None
    assert engine.index.generation().state == "missing"
    assert rebuild_if_needed() is not None
    assert_index_agrees()


def test_redis_away(engine):
    with index_away(), pytest.raises(IndexUnavailable):
        rebuild()
    with index_away(), pytest.raises(IndexUnavailable):
        rebuild_if_needed()


# -- claims of the old generation against the rebuild --------------------------------------------


@contextmanager
def claim_under_way(scene, hand, go):
    """A claim whose grant is not yet committed, on a separate connection."""
    [task_id] = put_many(1)
    proposal = scene.index.claim(hand.profile, hand.id, 1)
    granted = []

    def run():
        with atomic():
            granted.extend(claim_rows.claim([task_id], hand.id, proposal.generation, proposal.leased_at))
            until(lambda: bool(go), "the word to commit")

    side = Side(run)
    until(lambda: bool(granted), "the grant")
    yield task_id
    go.append(True)
    side.result()


def test_a_rebuild_waits_for_the_claims_that_are_being_committed(engine):
    set_queue_limits("default", max_concurrent=1)
    go = []
    with claim_under_way(engine, engine.worker(), go) as task_id:
        rebuilding = Side(rebuild)
        until(somebody_waits_for_a_lock, "the rebuild to wait")
        assert engine.index.generation().state == "ready", "nothing was read or written yet"
        go.append(True)
        rebuilt = rebuilding.result()
    assert rebuilt.leases == 1
    assert row(task_id).status == "executing"
    assert assert_index_agrees().leases == {task_id}


def test_without_the_lock_the_rebuild_would_miss_a_running_task(engine, monkeypatch):
    """Its slot is not counted: the cap of one would let a second task start."""
    text = claim_rows._LOCK
    assert text.count("pg_advisory_xact_lock_shared(%s)") == 1
    monkeypatch.setattr(claim_rows, "_LOCK", text.replace("pg_advisory_xact_lock_shared(%s)", "%s::int8"))
    set_queue_limits("default", max_concurrent=1)
    with claim_under_way(engine, engine.worker(), []) as task_id:
        assert Side(rebuild).result().leases == 0
    assert row(task_id).status == "executing"
    assert engine.check().leases == set()
    put(priority="critical")
    assert len(take(engine.worker())) == 1, "two run where one may"


def test_a_claim_that_comes_while_the_generation_is_raised_is_refused(engine):
    [task_id] = put_many(1)
    hand = engine.worker()
    number = snapshot.generation()
    with transaction.atomic():
        snapshot.raise_generation()
        claiming = Side(lambda: claim_rows.claim([task_id], hand.id, number, 1))
        until(somebody_waits_for_a_lock, "the claim to wait")
        assert claiming.running
    assert claiming.result() == []
    assert row(task_id).status == "queued"


def test_without_the_lock_such_a_claim_would_be_granted(engine, monkeypatch):
    text = claim_rows._LOCK
    monkeypatch.setattr(claim_rows, "_LOCK", text.replace("pg_advisory_xact_lock_shared(%s)", "%s::int8"))
    [task_id] = put_many(1)
    hand = engine.worker()
    number = snapshot.generation()
    with transaction.atomic():
        snapshot.raise_generation()
        assert len(Side(lambda: claim_rows.claim([task_id], hand.id, number, 1)).result()) == 1


def test_caps_hold_while_the_index_is_lost_again_and_again(engine, history):
    """Workers claim and finish while FLUSHALL empties the index again and again."""
    set_queue_limits("default", max_concurrent=2)
    ids = put_many(60)
    hands = [engine.worker() for _ in range(3)]
    stop = []

    def work(hand):
        while not stop:
            try:
                finish([done(task) for task in take(hand, 2)])
            except IndexNotReady:
                rebuild_if_needed()
            except UnknownProfile:
                engine.index.register(hand.profile, hand.id)

    def all_ended():
        return all(history.states(task_id).endswith("completed") for task_id in ids)

    def lose():
        """A rebuild that was overtaken may restore the lease of a task that has just ended: the reconciler frees it."""
        try:
            for _ in range(12):
                flush(engine)
                rebuild_if_needed()
                Reconciler().run_once()
            until(lambda: all_ended() or not Reconciler().run_once(), "the end of all tasks")
        finally:
            stop.append(True)

    at_once([lose, *(lambda h=hand: work(h) for hand in hands)])
    assert {history.states(task_id) for task_id in ids} == {"queued executing completed"}
    assert history.most_executing() <= 2


def test_the_generation_rises_above_that_of_the_index(engine):
    """PostgreSQL failed over to a standby of an earlier generation: its next number must not be one that was used."""
    rebuild()
    used = rebuild().generation
    IndexGeneration.objects.update(number=used - 1)
    assert rebuild_if_needed().generation == used + 1
    assert_index_agrees()


def test_a_senseless_number_in_the_index_does_not_count(engine):
    number = rebuild().generation
    engine.index._client.hset(engine.index.keys.generation, "number", 10**30)
    assert rebuild().generation == number + 1


def test_a_rebuild_that_loses_redis_at_its_end_does_not_block_the_next_one(engine, full, monkeypatch):
    """Its lock is still there; the process that has it goes on with it."""
    plain = engine.index._call
    lost = []

    def losing(name, *args):
        if lost or name == "finish_generation":
            lost.append(name)
            raise IndexUnavailable(f"{name}: gone")
        return plain(name, *args)

    monkeypatch.setattr(engine.index, "_call", losing)
    with pytest.raises(IndexUnavailable):
        rebuild()
    monkeypatch.undo()
    assert lost == ["finish_generation", "lock"]
    assert engine.index._client.exists(engine.index.keys.lock("rebuild"))
    assert rebuild_if_needed() is not None
    assert not engine.index._client.exists(engine.index.keys.lock("rebuild"))
    assert_index_agrees()


@pytest.mark.parametrize("kind", [kind for kind, each in KINDS.items() if each.is_kept])
def test_a_rebuild_works_whatever_type_the_keys_have(engine, full, kind):
    client = engine.index._client
    keys = by_kind(engine.index).get(kind) or [f"{engine.index.keys.prefix}:{kind}x".encode()]
    for key in keys:
        change_type(client, key)
    assert rebuild() is not None
    assert engine.index.wrong_types(keys) == []
    assert_index_agrees()
