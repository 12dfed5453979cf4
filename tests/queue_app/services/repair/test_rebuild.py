"""rebuild: the index is built again from the rows, leases first; claims are refused until it is done."""

import pytest

from queue_app import signals
from queue_app.exceptions import IndexNotReady, UnknownProfile
from queue_app.index import Generation
from queue_app.index.keys import KINDS
from queue_app.models import IndexGeneration
from queue_app.services.control.queues import set_queue_limits
from queue_app.services.lifecycle.finish import finish
from queue_app.services.repair.rebuild import rebuild, rebuild_if_needed
from queue_app.services.repair.reconcile import Reconciler
from queue_app.sql import snapshot
from queue_app.sql.doctor import database_identity
from tests.support.damage import by_kind, change_type
from tests.support.engine import assert_index_agrees, at_once, done, flush, put, put_many, scripts_through, take
from tests.support.index_state import client_of


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
    for part in ("lanes", "leases", "limits", "overall"):
        assert getattr(after, part) == getattr(before, part)
    assert (rebuilt.generation, rebuilt.tasks, rebuilt.leases) == (number + 1, len(before.waiting), len(before.leases))
    stored = IndexGeneration.objects.get()
    assert (stored.number, stored.tasks, stored.leases) == (rebuilt.generation, rebuilt.tasks, rebuilt.leases)
    assert stored.ready_at >= stored.started_at


def test_a_rebuild_is_announced(engine, hear):
    heard = hear(signals.index_rebuilt, "generation", "tasks")
    put_many(2)
    rebuilt = rebuild()
    assert heard == [(rebuilt.generation, 2)]


@pytest.mark.parametrize("why", ["another server run", "another generation than the rows"])
def test_an_existing_index_that_is_outdated(engine, full, why):
    if why == "another server run":
        client_of(engine.index).hset(f"{engine.index.keys.prefix}:generation", "run_id", "0" * 40)
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

    def try_to_claim(run, name, *args):
        reply = run(name, *args)
        if name not in ("claim", "lock"):
            with pytest.raises((IndexNotReady, UnknownProfile)) as refusal:
                take(hand, 5)
            refused.append((name, refusal.type))
        return reply

    with scripts_through(engine.index, try_to_claim):
        rebuild()
    opened = [name for name, _ in refused].index("open_generation")
    assert {error for _, error in refused[:opened]} == {IndexNotReady}
    assert {name for name, _ in refused[:opened]} >= {"set_limits", "restore_leases", "push"}
    assert {error for _, error in refused[opened:]} == {UnknownProfile}, "the worker has to register again"
    engine.index.register(hand.profile, hand.id)
    assert take(hand, 5) == [], "the cap holds from the first claim on"
    assert len(engine.check().leases) == 2


def test_tasks_that_are_enqueued_meanwhile_are_not_lost(engine):
    put_many(3)
    added = []

    def enqueue_meanwhile(run, name, *args):
        if name != "push" and len(added) < 30:
            added.append(None)
            put_many(1, queue=f"q{len(added)}")
        return run(name, *args)

    with scripts_through(engine.index, enqueue_meanwhile):
        assert rebuild() is not None
    assert len(added) >= 5
    assert len(assert_index_agrees().waiting) == 3 + len(added)


def test_tasks_that_end_meanwhile_leak_no_slot_for_long(engine, after):
    put()
    [task] = take(engine.worker())
    after(snapshot, "executing", lambda: finish([done(task)]))
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


def test_the_generation_rises_above_that_of_the_index(engine):
    """PostgreSQL failed over to a standby of an earlier generation: its next number must not be one that was used."""
    rebuild()
    used = rebuild().generation
    IndexGeneration.objects.update(number=used - 1)
    assert rebuild_if_needed().generation == used + 1
    assert_index_agrees()


def test_a_senseless_number_in_the_index_does_not_count(engine):
    number = rebuild().generation
    client_of(engine.index).hset(engine.index.keys.generation, "number", 10**30)
    assert rebuild().generation == number + 1


@pytest.mark.parametrize("kind", [kind for kind, each in KINDS.items() if each.is_kept])
def test_a_rebuild_works_whatever_type_the_keys_have(engine, full, kind):
    client = client_of(engine.index)
    keys = by_kind(engine.index).get(kind) or [f"{engine.index.keys.prefix}:{kind}x".encode()]
    for key in keys:
        change_type(client, key)
    assert rebuild() is not None
    assert engine.index.wrong_types(keys) == []
    assert_index_agrees()
