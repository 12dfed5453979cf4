"""How often one caller may call."""

from __future__ import annotations

import uuid

import pytest
from django.conf import settings as project
from redis.crc import key_slot

from queue_app.api import throttles
from queue_app.index import get_index
from queue_app.services.notify.index import breaker

TASKS = "/api/v1/tasks"


@pytest.fixture
def few(settings, monkeypatch):
    """Allow two submissions and three reads in a window that does not end meanwhile."""
    monkeypatch.setattr(throttles, "WINDOW_SECONDS", 10**6)
    limits = {"SUBMITS_PER_MINUTE": 2, "READS_PER_MINUTE": 3}
    prefix = f"{project.TASKQUEUE['KEY_PREFIX']}-throttles"
    settings.TASKQUEUE = {**project.TASKQUEUE, "API": limits, "KEY_PREFIX": prefix}


def test_each_caller_and_scope_is_counted_for_itself(few, alice, bob, plain_type):
    assert [alice.submit(task_type=plain_type).status_code for _ in range(3)] == [201, 201, 429]
    assert [alice.get(TASKS).status_code for _ in range(4)] == [200, 200, 200, 429]
    assert bob.submit(task_type=plain_type).status_code == 201
    refused = alice.submit(task_type=plain_type)
    assert refused.data["code"] == "throttled"
    assert 1 <= int(refused.headers["Retry-After"]) <= 10**6


def test_a_process_asks_for_many_calls_at_once_and_the_limit_holds_all_the_same(settings, monkeypatch):
    monkeypatch.setattr(throttles, "BLOCKS", 4)
    index, asked = get_index(), []
    count = index.count_calls
    monkeypatch.setattr(
        index, "count_calls", lambda name, calls, seconds: asked.append(calls) or count(name, calls, 60)
    )
    name = f"alice-{uuid.uuid4()}"
    here, there = throttles.Blocks(), throttles.Blocks()
    assert [there.take("reads", name, 1, 10), here.take("reads", name, 1, 10)] == [True, True]
    assert asked == [2, 2]
    assert [here.take("reads", name, 1, 10) for _ in range(9)] == [True] * 7 + [False] * 2, "one is still held there"
    assert [there.take("reads", name, 1, 10) for _ in range(2)] == [True, False]
    assert here.take("reads", name, 2, 10), "a window of its own"


def test_without_redis_nobody_is_refused(few, index_away, alice):
    assert [alice.get(TASKS).status_code for _ in range(5)] == [200] * 5
    assert breaker.is_open  # so that the next ones do not wait for it


def test_a_count_ends_by_itself_and_lies_in_the_slot_of_the_index(settings):
    """A Redis Cluster would refuse it anywhere else."""
    index = get_index()
    assert [index.count_calls("test", calls, 60) for calls in (1, 2)] == [1, 3]
    key = index.keys.throttle("test")
    assert key_slot(key.encode()) == key_slot(index.keys.prefix.encode())
    assert 0 < index._client.ttl(key) <= 60
    index._client.delete(key)
