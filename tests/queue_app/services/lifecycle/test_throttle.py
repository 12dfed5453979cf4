"""Throttle raised by task code: no attempt is spent, its gate closes in row and index, and opens by itself."""

from datetime import timedelta

import pytest
from django.utils import timezone

from queue_app.core.records import Outcome, Throttling
from queue_app.core.states import Status
from queue_app.exceptions import Throttle
from queue_app.models import Limit, Queue
from queue_app.services.lifecycle.claim import give_back
from queue_app.services.lifecycle.finish import finish
from queue_app.services.repair.reconcile import Reconciler
from queue_app.sql import finish as throttle_rows
from tests.support.engine import assert_index_agrees, index_away, put, row, status, take
from tests.support.index_clock import stop_clock

pytestmark = pytest.mark.both_ways

SCOPES = {
    # scope: who waits with the task, who does not
    "queue": ({"kind": "b"}, {"queue": "other"}),
    "type": ({"queue": "other"}, {"kind": "b"}),
    "key": ({"kind": "b", "concurrency_key": "api:1"}, {"concurrency_key": "api:2"}),
}


@pytest.fixture
def hand(engine):
    return engine.worker("a b")


def throttled(task, scope: str, seconds: float) -> Outcome:
    now = timezone.now()
    return Outcome(task, now, now, throttle=Throttling(scope, seconds))


def until(scope: str):
    """Return the time until which the row closes the gate."""
    if scope == "queue":
        return Queue.objects.get(pk="default").throttled_until
    return Limit.objects.get(scope=scope).throttled_until


@pytest.mark.parametrize("scope", SCOPES)
def test_one_gate_closes_and_the_others_stay_open(engine, hand, scope):
    first = put(concurrency_key="api:1")
    [task] = take(hand)
    together, apart = (put(**options) for options in SCOPES[scope])
    finish([throttled(task, scope, 60)])
    stored = row(first)
    assert (stored.status, stored.failures, stored.queued_at) == (Status.QUEUED, 0, task.queued_at)
    assert timedelta(seconds=50) < until(scope) - timezone.now() <= timedelta(seconds=60)
    assert_index_agrees()
    assert [each.id for each in take(hand, 5)] == [apart]
    assert (status(first), status(together)) == (Status.QUEUED, Status.QUEUED)


@pytest.mark.both_ways(False)
@pytest.mark.parametrize("scope", SCOPES)
def test_it_goes_on_by_itself_and_comes_first(engine, hand, scope, monkeypatch):
    first = put(concurrency_key="api:1")
    [task] = take(hand)
    second = put(concurrency_key="api:1")
    finish([throttled(task, scope, 60)])
    assert take(hand, 5) == []
    wait = engine.index.claim(hand.profile, hand.id, 1).wait
    assert wait is not None, "the claim says when to look again"
    assert 0 < wait <= 60
    stop_clock(engine.index, timezone.now() + timedelta(seconds=61), monkeypatch)
    found = take(hand, 5)
    assert [each.id for each in found] == [first, second]
    assert found[0].attempt == 2
    assert found[0].failures == 0
    assert_index_agrees()


def test_the_longer_time_holds(engine, hand):
    put()
    put()
    tasks = take(hand, 2)
    finish([throttled(tasks[0], "type", 600)])
    finish([throttled(tasks[1], "type", 1)])
    assert until("type") - timezone.now() > timedelta(seconds=500)


def test_the_familys_cap_still_holds_for_a_key_that_was_throttled(engine, hand):
    Limit.objects.create(scope="key", name="api", max_concurrent=1)
    put(concurrency_key="api:1")
    [task] = take(hand)
    finish([throttled(task, "key", 0.05)])
    put(concurrency_key="api:1")
    while not (found := take(hand, 5)):
        pass
    assert len(found) == 1
    assert take(hand, 5) == []
    assert_index_agrees()


def test_a_lost_notification_is_repaired_before_the_task_is_back(engine, hand, monkeypatch):
    task_id = put()
    [task] = take(hand)
    with index_away("set_limits", "release", "push"):
        finish([throttled(task, "type", 60)])
    assert status(task_id) == Status.QUEUED
    Reconciler().run_once()
    assert_index_agrees()
    assert take(hand) == []


def test_a_stale_attempt_closes_nothing(engine, hand):
    put()
    [task] = take(hand)
    give_back([task])
    assert len(take(hand)) == 1
    assert finish([throttled(task, "type", 60)]) == set()
    assert not Limit.objects.exists()


def test_rows_that_only_throttled_are_deleted_in_time(engine):
    ago = timezone.now() - timedelta(days=1)
    Limit.objects.create(scope="type", name="a", throttled_until=ago)
    Limit.objects.create(scope="type", name="b", throttled_until=ago, max_concurrent=3)
    Limit.objects.create(scope="type", name="c")
    assert throttle_rows.forget(3600, 10) == 1
    assert set(Limit.objects.values_list("name", flat=True)) == {"b", "c"}


BAD = {
    "an unknown scope": ((1, "user"), "scope"),
    "less than nothing": ((-1,), "seconds"),
    "no number": ((float("nan"),), "seconds"),
    "for years": ((1e9,), "seconds"),
}


@pytest.mark.parametrize("case", BAD)
def test_it_refuses(case):
    args, named = BAD[case]
    with pytest.raises(ValueError, match=named):
        Throttle(*args)
