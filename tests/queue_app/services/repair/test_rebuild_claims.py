"""Claims of the old generation against a rebuild: none is lost, and none starts one task too many."""

from functools import partial

from django.db import transaction

from queue_app.exceptions import IndexNotReady, UnknownProfile
from queue_app.models import Task
from queue_app.services.control.queues import set_queue_limits
from queue_app.services.lifecycle.finish import finish
from queue_app.services.repair.rebuild import rebuild, rebuild_if_needed
from queue_app.services.repair.reconcile import Reconciler
from queue_app.sql import claim as claim_rows, snapshot
from tests.support.engine import (
    assert_index_agrees,
    at_once,
    done,
    flush,
    held_up,
    open_transaction,
    put,
    put_many,
    row,
    take,
)
from tests.support.waiting import until


def test_a_rebuild_waits_for_the_claims_that_are_being_committed(engine):
    set_queue_limits("default", max_concurrent=1)
    task_id, hand = put(), engine.worker()
    proposal = engine.index.claim(hand.profile, hand.id, 1)
    grant = partial(claim_rows.claim, [task_id], hand.id, proposal.generation, proposal.leased_at)
    with open_transaction(grant) as commit:
        rebuilding = held_up(rebuild)
        assert engine.index.generation().state == "ready", "nothing was read or written yet"
        commit()
        rebuilt = rebuilding.result()
    assert rebuilt.leases == 1
    assert row(task_id).status == "executing"
    assert assert_index_agrees().leases == {task_id}


def test_a_claim_that_comes_while_the_generation_is_raised_is_refused(engine):
    [task_id] = put_many(1)
    hand = engine.worker()
    number = snapshot.generation()
    with transaction.atomic():
        snapshot.raise_generation()
        claiming = held_up(lambda: claim_rows.claim([task_id], hand.id, number, 1))
        assert claiming.running
    assert claiming.result() == []
    assert row(task_id).status == "queued"


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

    def lose():
        """A rebuild that was overtaken may restore the lease of a task that has just ended: the reconciler frees it."""
        try:
            for _ in range(8):
                flush(engine)
                rebuild_if_needed()
                Reconciler().run_once()
            waiting = Task.objects.exclude(status="completed")
            until(lambda: not waiting.exists() or not Reconciler().run_once(), "the end of all tasks")
        finally:
            stop.append(True)

    at_once([lose, *(lambda h=hand: work(h) for hand in hands)])
    assert {history.states(task_id) for task_id in ids} == {"queued executing completed"}
    assert history.most_executing() <= 2
