"""turn_over: attempts end and the next tasks begin in one transaction, and no cap is ever exceeded."""

from __future__ import annotations

import uuid
from datetime import UTC, datetime, timedelta
from unittest.mock import Mock

import pytest
from django.db import OperationalError

from queue_app.exceptions import IndexUnavailable
from queue_app.models import Limit, Queue, RuntimeSettings, Task, TaskPayload, TaskResult
from queue_app.services.control.queues import set_queue_limits
from queue_app.services.lifecycle import finish as finishing
from queue_app.services.lifecycle.actions import cancel
from queue_app.services.lifecycle.claim import give_back
from queue_app.services.lifecycle.finish import finish
from queue_app.services.repair.rebuild import copy_limits
from queue_app.services.repair.reconcile import Reconciler
from tests.support.engine import (
    assert_index_agrees,
    at_once,
    done,
    index_away,
    put,
    put_many,
    reconcile_later,
    status,
    take,
    take_ids,
)
from tests.support.index_state import client_of
from tests.support.scene import Hand


def turn_over(hand: Hand, outcomes, want: int = 10) -> tuple[set[uuid.UUID], list]:
    """Return the ids of the tasks that were still held, and the new tasks."""
    granted: list = []
    held = finishing.turn_over(hand.profile, hand.id, outcomes, want, granted.extend, lambda *_: None)
    return held, granted


def test_a_capped_slot_goes_from_one_task_to_the_next(engine, history):
    set_queue_limits("default", max_concurrent=2)
    ids = put_many(5)
    hand, other = engine.worker(), engine.worker()
    running = take(hand, 10)
    assert [task.id for task in running] == ids[:2]
    held, granted = turn_over(hand, [done(task, "1") for task in running])
    assert held == set(ids[:2])
    assert [task.id for task in granted] == ids[2:4]
    assert take_ids(other, 5) == [], "nobody else saw room meanwhile"
    assert [status(task_id) for task_id in ids] == ["completed"] * 2 + ["executing"] * 2 + ["queued"]
    assert TaskResult.objects.get(pk=ids[0]).value == 1
    assert history.most_executing() == 2
    assert_index_agrees()
    finish([done(task) for task in granted])
    assert take_ids(other, 5) == ids[4:]


def cap(scope: str, most: int, *, queue: str = "default", kind: str = "a") -> None:
    """Limit tasks by one of their gates."""
    if scope == "everything":
        RuntimeSettings.objects.update(max_concurrent=most)
    elif scope == "queue":
        Queue.objects.filter(pk=queue).update(max_concurrent=most)
    elif scope == "user":
        Queue.objects.filter(pk="default").update(max_concurrent_per_user=most)
    else:
        name = {"type": kind, "key": "k"}[scope]
        Limit.objects.update_or_create(scope=scope, name=name, defaults={"max_concurrent": most})
    copy_limits()


@pytest.mark.parametrize("scope", ["type", "key", "user", "everything"])
def test_slots_of_every_gate(engine, hand, history, scope):
    cap(scope, 1)
    ids = put_many(3, concurrency_key="k:1", user="u")
    tasks = take(hand, 10)
    seen = [task.id for task in tasks]
    while tasks:
        _, tasks = turn_over(hand, [done(task) for task in tasks])
        seen += [task.id for task in tasks]
    assert seen == ids
    assert history.most_executing() == 1
    assert engine.check().leases == set()


def test_nothing_is_granted_if_an_attempt_lost_its_task(engine, history):
    """Its slot may have gone to another worker."""
    set_queue_limits("default", max_concurrent=2)
    ids = put_many(6)
    hand, other = engine.worker(), engine.worker()
    one, two = take(hand, 10)
    give_back([two])
    assert take_ids(other) == [two.id]
    held, granted = turn_over(hand, [done(one), done(two)])
    assert (held, granted) == ({one.id}, [])
    assert [status(task_id) for task_id in ids] == ["completed", "executing"] + ["queued"] * 4
    assert history.most_executing() == 2
    Reconciler().run_once()
    assert engine.check().waiting == set(ids[2:]), "what was proposed waits at its place again"
    assert take_ids(other, 5) == [ids[2]]


def test_a_cap_holds_among_workers_that_turn_over_at_once(engine, history):
    set_queue_limits("default", max_concurrent=3)
    ids = put_many(60)
    hands = [engine.worker() for _ in range(4)]
    until = datetime.now(UTC) + timedelta(seconds=60)

    def work(hand: Hand) -> int:
        count, tasks = 0, take(hand, 2)
        while Task.objects.filter(status="queued").exists() and datetime.now(UTC) < until:
            if tasks:
                count += len(tasks)
                _, tasks = turn_over(hand, [done(task) for task in tasks], 2)
            else:
                tasks = take(hand, 2)
        finish([done(task) for task in tasks])
        return count + len(tasks)

    assert sum(at_once([lambda h=hand: work(h) for hand in hands])) == len(ids)
    assert history.most_executing() == 3
    assert set(Task.objects.values_list("status", "attempt")) == {("completed", 1)}
    assert_index_agrees()


def test_a_turn_over_gets_no_more_slots_of_a_gate_than_it_offers_there(engine, history, before):
    """What others exchange at this moment is no room, even for a worker that offers slots of other gates."""
    Limit.objects.create(scope="key", name="k", max_concurrent=3)
    one, other = engine.worker(), engine.worker()
    put_many(3, concurrency_key="k")
    of_one, of_other = take(one, 2), take(other, 1)
    put_many(3)
    of_other += take(other, 3)
    waiting = put_many(20, concurrency_key="k")
    nested: list = []
    before(
        finishing.finish_rows,
        "turn_over",
        lambda: nested.extend(turn_over(other, list(map(done, of_other)))[1]),
    )
    _, granted = turn_over(one, [done(task) for task in of_one])
    assert (len(granted), len(nested)) == (2, 1)
    assert Task.objects.filter(status="executing", pk__in=waiting).count() == 3


@pytest.mark.parametrize("scope", ["queue", "type", "user", "everything"])
def test_workers_that_turn_over_at_the_same_time_keep_their_slots(engine, history, before, scope):
    cap(scope, 4)
    put_many(20, user="u")
    one, other = engine.worker(), engine.worker()
    of_one, of_other = take(one, 2), take(other, 2)
    nested: list = []
    before(
        finishing.finish_rows,
        "turn_over",
        lambda: nested.extend(turn_over(other, list(map(done, of_other)))[1]),
    )
    _, granted = turn_over(one, [done(task) for task in of_one])
    assert (len(granted), len(nested)) == (2, 2)
    assert history.most_executing() == 4
    assert take_ids(engine.worker(), 5) == [], "a plain claim sees no room"
    assert_index_agrees()


@pytest.mark.parametrize("scope", ["queue", "type", "key", "user"])
def test_a_lowered_cap_is_reached_by_one_task_at_a_time_beside_quick_tasks(engine, scope):
    """Quick tasks behind another cap end in the same batches, so many leases are young."""
    options = {"queue": {"queue": "slow"}, "type": {}, "key": {"concurrency_key": "k:1"}, "user": {"user": "u"}}[scope]
    Queue.objects.create(name="quick", max_concurrent=6)
    Queue.objects.create(name="slow")
    cap(scope, 6, queue="slow", kind="b")
    hand = engine.worker("a b")
    put_many(20, "b", **options)
    put_many(60, queue="quick")
    held = take(hand, 50)
    cap(scope, 1, queue="slow", kind="b")
    later(engine)
    trail = [sum(task.task_type == "b" for task in held)]
    for _ in range(7):
        slow = [task for task in held if task.task_type == "b"]
        ends = slow[:1] + [task for task in held if task not in slow]
        _, granted = turn_over(hand, [done(task) for task in ends], len(ends))
        held = slow[1:] + granted
        trail.append(sum(task.task_type == "b" for task in held))
    assert trail == [6, 5, 4, 3, 2, 1, 1, 1]


def later(engine) -> None:
    """Let the index's clock go on by a minute."""
    client_of(engine.index).hincrby(engine.index.keys.generation, "behind", 60_000_000)


def die_before_the_transaction(monkeypatch, hand: Hand, task) -> None:
    """End a worker's task by a turn-over that claims, and dies."""
    with monkeypatch.context() as patch:
        patch.setattr(finishing.finish_rows, "turn_over", Mock(side_effect=OperationalError))
        with pytest.raises(OperationalError):
            turn_over(hand, [done(task)])


def test_a_lowered_cap_is_reached_while_workers_turn_over_at_the_same_time(engine, before):
    """The second turn-over cannot know whether the first will end its tasks or keep them."""
    set_queue_limits("default", max_concurrent=4)
    put_many(20)
    one, other = engine.worker(), engine.worker()
    of_one, of_other = take(one, 2), take(other, 2)
    set_queue_limits("default", max_concurrent=3)
    later(engine)
    nested: list = []
    before(
        finishing.finish_rows,
        "turn_over",
        lambda: nested.extend(turn_over(other, list(map(done, of_other)))[1]),
    )
    _, granted = turn_over(one, [done(task) for task in of_one])
    assert (len(granted), len(nested)) == (1, 1)
    assert len(take(one, 5)) == 1


def test_leases_that_a_dead_worker_turned_over_count_until_they_are_repaired(engine, monkeypatch, history):
    """Its record frees a slot once for another worker, and never a second one."""
    set_queue_limits("default", max_concurrent=2)
    put_many(9)
    dead, other = engine.worker(), engine.worker()
    [of_dead], [of_other] = take(dead), take(other)
    die_before_the_transaction(monkeypatch, dead, of_dead)
    for _ in range(3):
        _, [of_other] = turn_over(other, [done(of_other)])
    for _ in range(2):
        Reconciler().run_once()
    _, [of_other] = turn_over(other, [done(of_other)])
    assert take_ids(other, 5) == []
    assert history.most_executing() == 2


def test_after_a_repair_of_leases_too(engine, monkeypatch):
    """A lost key let too many tasks start; the reconciler has restored their leases."""
    set_queue_limits("default", max_concurrent=2)
    put_many(20)
    one, other = engine.worker(), engine.worker()
    of_one = take(one, 2)
    client_of(engine.index).delete(engine.index.keys.queue_leases("default"))
    of_other = take(other, 2)
    assert len(of_other) == 2
    Reconciler().run_once()
    for hand, tasks in ((one, of_one), (other, of_other)):
        _, tasks[:] = turn_over(hand, [done(task) for task in tasks])
    assert Task.objects.filter(status="executing").count() == 2


def test_a_worker_with_more_than_its_part_leaves_slots_to_workers_that_lack_tasks(engine, history):
    set_queue_limits("default", max_concurrent=40)
    put_many(200)
    one, other = engine.worker(), engine.worker()
    of_one = take(one, 40)
    assert take(other, 40) == []
    _, of_one = turn_over(one, [done(task) for task in of_one], 50)
    engine.index.flush()
    assert engine.index.wait_for_call(other.id, 1), "the release wakes the worker that waits"
    of_other = take(other, 40)
    assert (len(of_one), len(of_other)) == (20, 20)
    for _ in range(3):  # and both keep theirs
        _, of_one = turn_over(one, [done(task) for task in of_one], 50)
        _, of_other = turn_over(other, [done(task) for task in of_other], 50)
        assert (len(of_one), len(of_other)) == (20, 20)
    assert history.most_executing() == 40


@pytest.mark.parametrize("forgets_scripts", [False, True])
def test_a_turn_over_claims_no_more_than_ends(engine, hand, forgets_scripts):
    """A worker has been woken for any other room; a server that knew no script ends the leases before the claim too."""
    set_queue_limits("default", max_concurrent=6)
    put_many(20)
    if forgets_scripts:
        engine.index._notifier._pipeline.disconnect()
        client_of(engine.index).script_flush()
    tasks = take(hand, 2)
    assert len(turn_over(hand, [done(task) for task in tasks], 6)[1]) == 2
    assert len(take(hand, 6)) == 4


def test_a_task_that_was_asked_to_stop_ends_cancelled_and_frees_its_slot(engine, hand):
    set_queue_limits("default", max_concurrent=1)
    first, second = put_many(2)
    [task] = take(hand, 10)
    cancel(first)
    assert turn_over(hand, [done(task)])[0] == {first}
    assert (status(first), status(second)) == ("cancelled", "executing")


def test_when_nothing_waits_it_is_a_plain_end(engine, hand):
    put()
    tasks = take(hand, 10)
    assert turn_over(hand, [done(task) for task in tasks]) == ({tasks[0].id}, [])
    assert engine.check().leases == set()


# -- crash points ---------------------------------------------------------------------------


def test_while_redis_is_away_nothing_is_recorded_and_the_caller_reports_as_ever(engine, hand):
    put_many(2)
    [task] = take(hand)
    with index_away("claim"), pytest.raises(IndexUnavailable):
        turn_over(hand, [done(task)])
    assert status(task.id) == "executing"
    assert finish([done(task)]) == {task.id}


def test_a_worker_that_dies_before_the_transaction_leaves_slots_that_come_back(engine, monkeypatch, history):
    set_queue_limits("default", max_concurrent=1)
    first, second = put_many(2)
    hand, other = engine.worker(), engine.worker()
    [task] = take(hand)

    die_before_the_transaction(monkeypatch, hand, task)
    assert take_ids(other, 5) == [], "the old lease still counts"
    reconcile_later()
    assert engine.check().leases == {first}
    finish([done(task)])
    assert take_ids(other, 5) == [second]
    assert history.most_executing() == 1


def test_a_worker_that_dies_after_the_transaction_leaves_a_slot_until_the_reconciler_comes(engine):
    set_queue_limits("default", max_concurrent=1)
    ids = put_many(3)
    hand, other = engine.worker(), engine.worker()
    [task] = take(hand)
    with index_away("release"):
        _, [second] = turn_over(hand, [done(task)])
    finish([done(second)])
    Reconciler().run_once()
    assert take_ids(other, 5) == [ids[2]]
    assert_index_agrees()


def test_hooks_hear_of_attempts_that_end_so_and_secrets_stay_encrypted(engine, settings, monkeypatch):
    settings.TASKQUEUE = {**settings.TASKQUEUE, "ENCRYPTION": {"KEYS": ["k:" + 42 * "a" + "A"], "TASKS": ["*"]}}
    set_queue_limits("default", max_concurrent=1)
    ids = put_many(2, args=["canary"])
    hand, heard = engine.worker(), []
    monkeypatch.setattr(finishing, "after_end", heard.extend)
    _held, granted = turn_over(hand, [done(task, '"canary"') for task in take(hand)])
    assert [(each.outcome.task.id, each.status) for each in heard] == [(ids[0], "completed")]
    assert granted[0].args == '["canary"]'
    assert "canary" not in f"{TaskPayload.objects.values()}{TaskResult.objects.values()}"
