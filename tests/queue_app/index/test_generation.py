"""begin_generation.lua, wipe.lua, finish_generation.lua and generation.lua: claims are refused during a rebuild."""

import pytest

from queue_app.core.limits import Limits, Scope, gate_of
from queue_app.exceptions import UnknownProfile
from queue_app.index import Generation, Index, index as index_module
from tests.support.index_state import client_of
from tests.support.leases import restore
from tests.support.scene import Scene, set_limits


def test_an_empty_index_carries_no_generation(index: Index):
    assert index.generation() == Generation(0, "missing")


def test_from_begin_to_finish(index: Index):
    index.begin_generation(4)
    assert index.generation() == Generation(4, "rebuilding")
    assert index.finish_generation(4)
    assert index.generation() == Generation(4, "ready")


def test_another_server_run_counts_as_missing(scene: Scene):
    client_of(scene.index).hset(f"{scene.index.keys.prefix}:generation", "run_id", "0" * 40)
    assert scene.index.generation() == Generation(0, "missing")
    assert scene.index.finish_generation(1) is False


def test_an_index_lost_meanwhile_cannot_be_finished(index: Index):
    index.begin_generation(1)
    client_of(index).delete(f"{index.keys.prefix}:generation")
    assert index.finish_generation(1) is False
    assert index.generation().state == "missing"


def test_of_two_rebuilds_the_later_one_counts(index: Index):
    index.begin_generation(1)
    index.begin_generation(2)
    assert index.finish_generation(1) is False
    assert index.generation() == Generation(2, "rebuilding")
    assert index.finish_generation(2) is True


def test_a_beginning_generation_forgets_everything_but_limits_locks_and_calls(scene: Scene):
    hand = scene.worker()
    scene.claim(hand)
    scene.push(*(scene.task(f"t{n}", n, queue=f"q{n % 7}", kind=f"k{n % 300}") for n in range(1500)), scene.task("x"))
    restore(scene.index, [(scene.task("y").id, "default")])
    set_limits(scene.index, "", max_concurrent=9)
    set_limits(scene.index, "q1", max_concurrent=1, paused=True)
    assert scene.index.lock("scheduler", "me", 60)
    scene.index.begin_generation(2)
    state = scene.check()
    assert (state.lanes, state.leases, state.profiles) == ({}, set(), set())
    assert state.limits == {"q1": {"max_concurrent": "1", "paused": "1"}}, "or pushes would not know their lanes"
    assert state.overall == {"max_concurrent": "9"}
    assert scene.called(hand)
    assert not scene.index.lock("scheduler", "another", 60)


def test_a_rebuild_that_was_overtaken_wipes_nothing_of_the_later_one(index: Index, monkeypatch):
    """Its lock expired while its process was stopped; meanwhile another rebuild restored leases that count for caps."""
    scene = Scene(index)
    scene.push(scene.task("old"))
    task = scene.task("running", queue="q")
    scan = client_of(index).scan_iter

    def overtaken(*args: object, **kwargs: object):
        monkeypatch.undo()
        index.begin_generation(2)
        restore(index, [(task.id, task.queue)])
        yield from scan(*args, **kwargs)

    monkeypatch.setattr(client_of(index), "scan_iter", overtaken)
    assert index.begin_generation(1) is False
    monkeypatch.undo()
    assert scene.leased() == {"running"}


def test_a_worker_that_registers_during_the_wipe_registers_again(scene: Scene, override, monkeypatch):
    """The wipe would delete a part of what it writes; the rest would stay in the index until the next rebuild."""
    hand = scene.worker()
    scene.index.set_limits(gate_of(Scope.TYPE, "a"), Limits(max_concurrent=1))  # its lane is grouped behind a gate
    scan = client_of(scene.index).scan_iter

    def interleaved(*args: object, **kwargs: object):
        keys = sorted(scan(*args, **kwargs), key=lambda key: key.endswith(b":gates") or b":profile:" in key)
        for key in keys:
            if key.endswith(b":gates"):  # what comes before it is deleted by now
                scene.index.push([scene.task("x")])
                scene.index.register(hand.profile, hand.id)
            yield key

    scene.push(scene.task("y"))
    override(index_module, BATCH=1)
    monkeypatch.setattr(client_of(scene.index), "scan_iter", interleaved)
    scene.index.begin_generation(2)
    monkeypatch.undo()
    assert scene.check().profiles == set()
    scene.index.finish_generation(2)
    with pytest.raises(UnknownProfile):
        scene.index.claim(hand.profile, hand.id, 1)
    scene.index.register(hand.profile, hand.id)
    assert scene.claim(hand) in ("x", "y")
