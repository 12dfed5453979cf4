"""load: a rebuild lets workers claim after the first tasks of each queue and band, and loads the rest meanwhile."""

from unittest.mock import Mock

import pytest

from queue_app.diagnose.explain import explain
from queue_app.exceptions import IndexNotReady, IndexUnavailable, UnknownProfile
from queue_app.index import Index
from queue_app.models import Queue, Task
from queue_app.services.control.queues import set_queue_limits
from queue_app.services.lifecycle.finish import finish
from queue_app.services.repair.rebuild import copy_limits, is_needed, rebuild, rebuild_if_needed, rebuild_until_open
from queue_app.services.repair.reconcile import Reconciler
from queue_app.sql import snapshot
from tests.support.engine import Side, assert_index_agrees, done, flush, put, put_many, row, take, take_ids
from tests.support.faults import failing
from tests.support.index_state import client_of, read
from tests.support.waiting import until


def claim_again(engine, hand, want=1):
    """Claim as a worker does that the new index does not know yet."""
    try:
        return take_ids(hand, want)
    except UnknownProfile:
        engine.index.register(hand.profile, hand.id)
        return take_ids(hand, want)


def waiting(engine):
    """Return the ids in the index."""
    return {task_id for lane in read(engine.index).addresses.values() for task_id in lane}


@pytest.mark.parametrize("count", [1, 2, 3, 4, 5, 9])
def test_all_tasks_of_all_queues_and_bands_are_loaded(engine, small_pages, count):
    for queue in ("a", "b"):
        for priority in ("critical", "low"):
            put_many(count, queue=queue, priority=priority)
    put("b", queue="c", capabilities=["g"], user="ina", concurrency_key="account:1", weight=2)
    flush(engine)
    assert rebuild_if_needed().tasks == 4 * count + 1
    assert_index_agrees()


def test_tasks_of_one_instant_are_divided_by_their_ids(engine, small_pages):
    ids = put_many(7)
    Task.objects.update(queued_at=row(ids[0]).queued_at)
    flush(engine)
    rebuild_if_needed()
    assert_index_agrees()


def test_the_first_tasks_of_each_queue_and_band_start_while_others_are_loaded(engine, between_steps):
    hand = engine.worker("a")
    low = put_many(9, priority="low")
    mail = put_many(3, queue="mail")
    urgent = put_many(3, priority="critical")
    flush(engine)
    taken = []
    between_steps.append(lambda: taken.extend(claim_again(engine, hand, 20)))
    rebuild_if_needed()
    assert taken == [*urgent[:2], *mail[:2], *low[:2]], "two of each, in the order of their bands"
    assert_index_agrees()


def test_the_most_urgent_band_is_loaded_first(engine, between_steps):
    hand = engine.worker("a")
    put_many(9, priority="low")
    urgent = put_many(5, priority="critical")
    flush(engine)
    taken = []
    between_steps += [lambda: None, lambda: taken.extend(claim_again(engine, hand, 4))]
    rebuild_if_needed()
    assert taken == urgent[:4]


def test_a_new_task_does_not_pass_older_ones_that_are_not_loaded_yet(engine, between_steps):
    hand = engine.worker("a")
    old = put_many(7)
    flush(engine)
    taken, new = [], []

    def enqueue_and_claim():
        new.append(put())
        taken.extend(claim_again(engine, hand, 50))

    between_steps += [enqueue_and_claim] * 9
    rebuild_if_needed()
    taken += take_ids(hand, 50)
    assert new
    assert taken == old + new, "an idle worker took what was there, in the order of the queue"
    assert_index_agrees()


def test_a_queue_by_arrival_is_loaded_in_the_order_of_its_tasks(engine, between_steps):
    """Whatever their bands, and also beside new tasks of bands that it did not have."""
    queue = Queue.objects.get(pk="default")
    queue.order = "arrival"
    queue.save()
    hand = engine.worker("a")
    old = [task_id for _ in range(4) for task_id in (*put_many(3, priority="low"), *put_many(1, priority="high"))]
    flush(engine)
    taken, new = [], []

    def enqueue_and_claim():
        new.extend((put(priority="critical"), put(priority="background")))
        taken.extend(claim_again(engine, hand, 50))

    between_steps += [enqueue_and_claim] * 3
    rebuild_if_needed()
    taken += take_ids(hand, 50)
    assert len(new) > 2
    assert taken == old + new
    assert_index_agrees()


def test_a_task_of_another_queue_or_band_starts_at_once(engine, between_steps):
    hand = engine.worker("a")
    put_many(9)
    flush(engine)
    new, taken = [], []

    def enqueue_and_claim():
        new.extend((put(priority="critical"), put(queue="mail", priority="critical")))
        taken.extend(claim_again(engine, hand, 2))

    between_steps.append(enqueue_and_claim)
    rebuild_if_needed()
    assert taken == new


def test_caps_hold_while_tasks_are_loaded(engine, between_steps, history):
    set_queue_limits("default", max_concurrent=2)
    hand = engine.worker("a")
    ids = put_many(15)
    first = take(hand, 2)
    flush(engine)
    rounds = []

    def work():
        if rounds:
            finish([done(task) for task in rounds[-1]])
        try:
            rounds.append(take(hand, 5))
        except UnknownProfile:
            engine.index.register(hand.profile, hand.id)
            rounds.append(take(hand, 5))

    between_steps += [work, lambda: finish([done(task) for task in first]), work, work, work]
    rebuild_if_needed()
    assert rounds[0] == [], "the slots of the running tasks are taken"
    assert [len(found) for found in rounds[1:]] == [2, 2, 2]
    assert history.most_executing() <= 2
    assert [task.id for found in rounds for task in found] == ids[2:8]
    assert_index_agrees()


def test_a_process_that_dies_while_it_loads_stops_claims_until_the_next_rebuild(engine, between_steps):
    hand = engine.worker("a")
    put_many(9)
    flush(engine)
    between_steps.append(Mock(side_effect=IndexUnavailable("died")))
    with pytest.raises(IndexUnavailable):
        rebuild()
    assert engine.index.generation().state == "rebuilding"
    with pytest.raises(IndexNotReady):
        take(hand)
    assert is_needed(snapshot.way())
    assert rebuild_if_needed() is not None
    assert_index_agrees()


def test_nobody_else_rebuilds_while_one_loads(engine, between_steps):
    put_many(9)
    flush(engine)
    found = []
    between_steps.append(lambda: found.append((is_needed(snapshot.way()), rebuild_if_needed(), rebuild())))
    rebuild_if_needed()
    assert found == [(False, None, None)]


def test_a_load_that_was_overtaken_stops(engine, between_steps):
    ids = put_many(9)
    flush(engine)
    between_steps.append(lambda: (client_of(engine.index).delete(engine.index.keys.lock("rebuild")), rebuild()))
    assert rebuild() is None
    assert waiting(engine) == set(ids)
    assert engine.index.generation().state == "ready"
    assert_index_agrees()


def make_fair():
    Queue.objects.filter(pk="default").update(order="fair", fair_by="user")
    copy_limits()


def test_an_edit_that_needs_other_lanes_begins_the_rebuild_anew(engine, between_steps):
    put_many(9, user="ina")
    flush(engine)
    between_steps.append(make_fair)
    assert rebuild() is None
    assert rebuild_if_needed() is not None
    assert_index_agrees()


def test_a_position_is_unknown_until_all_is_loaded(engine, between_steps):
    ids = put_many(9)
    refs = {ref.id: ref for ref in snapshot.refs(ids)}
    flush(engine)
    found = []
    between_steps.append(
        lambda: found.append((engine.index.position(refs[ids[8]]), engine.index.future_position(refs[ids[8]].entry)))
    )
    rebuild_if_needed()
    assert found == [(None, None)]
    assert engine.index.position(refs[ids[8]]) == 9


def test_explain_names_the_rebuild_for_tasks_that_are_not_loaded(engine, between_steps):
    engine.worker("a")
    ids = put_many(9)
    flush(engine)
    codes = []
    between_steps.append(lambda: codes.extend([reason.code for reason in explain(ids[n]).reasons] for n in (0, 8)))
    rebuild_if_needed()
    assert "index_rebuilding" not in codes[0]
    assert "index_rebuilding" in codes[1]


def test_the_reconciler_takes_no_part_in_the_load(engine, between_steps):
    put_many(9)
    flush(engine)
    found = []
    between_steps.append(lambda: found.append(Reconciler().run_once()["missing"]))
    rebuild_if_needed()
    assert found == [0]
    assert_index_agrees()


def test_a_worker_goes_on_while_a_thread_loads(engine, between_steps, override):
    override("queue_app.services.repair.rebuild", LOAD_SECONDS=0.01)
    hand = engine.worker("a")
    ids = put_many(9)
    flush(engine)
    word = []
    between_steps.append(lambda: until(lambda: bool(word), "the word to go on"))
    assert rebuild_until_open()
    assert engine.index.generation().state == "loading"
    assert not rebuild_until_open(), "one loads already"
    assert claim_again(engine, hand) == ids[:1]
    word.append(True)
    until(lambda: engine.index.generation().state == "ready", "the end of the load")
    Side(assert_index_agrees).result()


def test_a_process_goes_on_while_a_thread_takes_long_to_allow_claims(engine, override, monkeypatch, caplog):
    """A worker reports its tasks meanwhile, and a scheduler keeps its lead."""
    override("queue_app.services.repair.rebuild", OPEN_SECONDS=0.01)
    put_many(3)
    flush(engine)
    word, plain = [], Index.restore_leases

    def take_long(*args):
        until(lambda: bool(word), "the word to go on")
        if word == ["fail"]:
            raise IndexUnavailable("away")
        return plain(*args)

    monkeypatch.setattr(Index, "restore_leases", take_long)
    assert not rebuild_until_open()
    until(lambda: engine.index.generation().state == "rebuilding", "the thread has begun")
    assert rebuild() is None, "the thread holds the lock"
    word.append("fail")
    until(lambda: "a rebuild broke off and starts over: away" in caplog.messages, "the thread says so")
    override("queue_app.services.repair.rebuild", OPEN_SECONDS=60.0)
    word[:] = ["go"]
    until(rebuild_until_open, "the next rebuild allows claims")
    Side(assert_index_agrees).result()


def test_an_error_before_claims_are_allowed_reaches_the_caller(engine):
    flush(engine)
    with failing(Index, "restore_leases", IndexUnavailable("away")), pytest.raises(IndexUnavailable):
        rebuild_until_open()
