"""A rebuild that dies, or loses Redis, leaves an index that refuses claims and that the next rebuild repairs."""

import pytest

from queue_app.exceptions import IndexNotReady, IndexUnavailable
from queue_app.index import Generation
from queue_app.services.control.pause import pause
from queue_app.services.repair.rebuild import rebuild, rebuild_if_needed
from queue_app.sql import snapshot
from queue_app.sql.doctor import database_identity
from tests.support.engine import assert_index_agrees, flush, index_away, scripts_through, take
from tests.support.index_state import client_of

STEPS = [
    "begin_generation", "load_until", "wipe", "restore_leases", "set_limits", "push", "open_generation",
    "finish_generation",
]  # fmt: skip


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("step", STEPS)
def test_a_rebuild_that_dies_leaves_an_index_that_refuses_claims(engine, full, step, when):
    pause("q")

    def die(run, name, *args):
        if name == step and when == "before":
            raise IndexUnavailable("died")
        reply = run(name, *args)
        if name == step:
            raise IndexUnavailable("died")
        return reply

    with scripts_through(engine.index, die), pytest.raises(IndexUnavailable):
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
    if (step, when) != ("finish_generation", "after"):
        assert rebuild_if_needed() is not None
    assert engine.index.generation() == Generation(snapshot.generation(), "ready", database_identity())
    assert_index_agrees()


def test_an_index_lost_again_during_the_rebuild_is_not_opened(engine, full, before):
    before(engine.index, "finish_generation", lambda: flush(engine))
    assert rebuild() is None
    assert engine.index.generation().state == "missing"
    assert rebuild_if_needed() is not None
    assert_index_agrees()


def test_redis_away(engine):
    with index_away(), pytest.raises(IndexUnavailable):
        rebuild()
    with index_away(), pytest.raises(IndexUnavailable):
        rebuild_if_needed()


def test_a_rebuild_that_loses_redis_at_its_end_does_not_block_the_next_one(engine, full):
    """Its lock is still there; the process that has it goes on with it."""
    lost = []

    def losing(run, name, *args):
        if lost or name == "finish_generation":
            lost.append(name)
            raise IndexUnavailable(f"{name}: gone")
        return run(name, *args)

    with scripts_through(engine.index, losing), pytest.raises(IndexUnavailable):
        rebuild()
    assert lost == ["finish_generation", "lock"]
    assert client_of(engine.index).exists(engine.index.keys.lock("rebuild"))
    assert rebuild_if_needed() is not None
    assert not client_of(engine.index).exists(engine.index.keys.lock("rebuild"))
    assert_index_agrees()
