"""Claims start the same tasks in the same order, whether they find them in Redis or in PostgreSQL."""

from datetime import timedelta

import pytest
from django.utils import timezone

from queue_app.core.records import TaskRef
from queue_app.index import Profile, get_index
from queue_app.models import Limit, PriorityPolicy, Queue, RuntimeSettings, Task
from queue_app.services.control import pause
from queue_app.services.lifecycle.claim import claim
from queue_app.services.lifecycle.finish import finish
from queue_app.services.repair.rebuild import rebuild
from tests.support.engine import done, put, put_many, row, take, take_ids
from tests.support.scene import Hand

pytestmark = pytest.mark.both_ways


def limit_everything(**limits):
    row = RuntimeSettings.objects.get()
    vars(row).update(limits)
    row.save()


#: What tasks pass, and the row that limits it.
LIMITED = {
    "everything": ({}, limit_everything),
    "queue": ({"queue": "q"}, lambda **limits: Queue.objects.create(name="q", **limits)),
    "type": ({}, lambda **limits: Limit.objects.create(scope="type", name="a", **limits)),
    "key": ({"concurrency_key": "k"}, lambda **limits: Limit.objects.create(scope="key", name="k", **limits)),
    "family": ({"concurrency_key": "k:1"}, lambda **limits: Limit.objects.create(scope="key", name="k", **limits)),
}
PAUSES = {
    "everything": ({}, pause.pause_everything, pause.resume_everything),
    "queue": ({}, lambda: pause.pause("default"), lambda: pause.resume("default")),
    "type": ({}, lambda: pause.pause_type("a"), lambda: pause.resume_type("a")),
    "key": ({"concurrency_key": "k"}, lambda: pause.pause_key("k"), lambda: pause.resume_key("k")),
    "family": ({"concurrency_key": "k:1"}, lambda: pause.pause_key("k"), lambda: pause.resume_key("k")),
}


def queued_ago(task_id, seconds):
    Task.objects.filter(pk=task_id).update(queued_at=timezone.now() - timedelta(seconds=seconds))


@pytest.mark.parametrize("what", LIMITED)
def test_a_cap_holds_and_a_freed_slot_is_taken(hand, what):
    options, limit = LIMITED[what]
    limit(max_concurrent=2)
    ids = put_many(5, **options)
    first = take(hand, 10)
    assert [task.id for task in first] == ids[:2]
    assert take_ids(hand, 10) == []
    finish([done(first[0])])
    assert take_ids(hand, 10) == ids[2:3]


def test_a_cap_of_each_user(hand):
    Queue.objects.create(name="q", max_concurrent_per_user=1)
    ids = [put(queue="q", user=user) for user in ("u", "u", "v")]
    first = take(hand, 10)
    assert [task.id for task in first] == [ids[0], ids[2]]
    finish([done(task) for task in first])
    assert take_ids(hand, 10) == ids[1:2]


@pytest.mark.parametrize("what", PAUSES)
def test_nothing_starts_during_a_pause(hand, what):
    options, begin, stop = PAUSES[what]
    ids = put_many(2, **options)
    begin()
    assert take_ids(hand, 10) == []
    stop()
    assert take_ids(hand, 10) == ids


@pytest.mark.parametrize("limits", [{"rate_count": 1, "rate_seconds": 1000}, {"min_delay_seconds": 1000}], ids=str)
def test_a_rate_says_when_the_next_task_may_start(hand, limits):
    Limit.objects.create(scope="type", name="a", **limits)
    put()
    other = put("b")
    hand, waits = Hand(hand.id, Profile.of((), ("a", "b"), ())), []
    get_index().register(hand.profile, hand.id)
    found = claim(hand.profile, hand.id, 10, on_wait=lambda wait, _: waits.append(wait))
    assert [task.id for task in found] == [other]
    assert waits == [pytest.approx(1000, abs=30)]


def test_a_rate_lets_as_many_start_as_time_allows(hand):
    Limit.objects.create(scope="type", name="a", rate_count=1, rate_seconds=1e-3, rate_burst=3)
    put_many(9)
    found = take(hand, 10)
    assert 1 <= len(found) <= 3
    assert all(task.start_by is not None for task in found)


def test_bands_go_first_and_within_a_band_the_oldest(hand):
    ids = {band: put(priority=band) for band in ("low", "critical", "normal", "high", "background")}
    later = put(priority="critical")
    assert take_ids(hand, 10) == [
        ids["critical"],
        later,
        *(ids[band] for band in ("high", "normal", "low", "background")),
    ]


def test_an_old_task_counts_as_one_of_the_next_band(hand):
    PriorityPolicy.objects.filter(priority=3).update(promote_after_seconds=60)
    low, normal = put(priority="low"), put()
    queued_ago(low, 90)
    rebuild()
    get_index().register(hand.profile, hand.id)
    assert [*take_ids(hand), *take_ids(hand)] == [low, normal]


def test_the_users_of_a_fair_queue_take_turns(hand):
    Queue.objects.create(name="q", order="fair", fair_by="user")
    ids = {user: put_many(3, queue="q", user=user) for user in ("u", "v")}
    assert take_ids(hand, 4) == [ids["u"][0], ids["v"][0], ids["u"][1], ids["v"][1]]


def test_a_worker_takes_what_it_can_run(engine):
    put(capabilities=["gpu"])
    put("b")
    heavy, light = put(weight=3), put()
    hand = Hand(engine.worker().id, Profile.of((), ("a",), (), 2))
    get_index().register(hand.profile, hand.id)
    assert take_ids(hand, 2) == [light]
    assert row(heavy).status == "queued"


def test_a_heavy_task_takes_its_slots(hand):
    heavy, light = put(weight=2), put()
    assert take_ids(hand, 2) == [heavy]
    assert take_ids(hand, 2) == [light]


def test_a_position_is_the_place_in_the_queue(hand):
    ids = [*put_many(2), put(priority="low"), put(priority="high")]
    index = get_index()
    positions = [index.position(TaskRef.of(row(task_id))) for task_id in ids]
    assert positions == [2, 3, 4, 1]
    take(hand, 2)
    assert index.position(TaskRef.of(row(ids[1]))) == 1


def test_counts_of_queues_and_counters(hand):
    put_many(3)
    take(hand)
    index = get_index()
    index.count({"repair:missing": 2})
    stats = index.stats()
    (depth,) = stats.queues
    assert (depth.queue, depth.total, depth.active, stats.state) == ("default", 2, 1, "ready")
    assert index.depth("default") == depth
    assert stats.counts["repair:missing"] == 2
    assert [count for name, count in stats.counts.items() if name.startswith("event:Started:default:")] == [1]


def test_a_lock_has_one_holder_until_it_lapses(index):
    assert index.lock("l", "one", 60)
    assert not index.lock("l", "other", 60)
    assert index.lock("l", "one", 60)
    assert not index.lock("l", "one", 0)
    assert index.lock("l", "other", 60)


def test_calls_are_counted_within_their_time(index):
    assert [index.count_calls("c", 2, 60), index.count_calls("c", 3, 60)] == [2, 5]
