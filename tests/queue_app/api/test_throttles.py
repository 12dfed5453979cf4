"""Rate limits of callers."""

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
    """Allow 2 submissions and 3 reads in a window that does not end during the test."""
    monkeypatch.setattr(throttles, "WINDOW_SECONDS", 10**6)
    limits = {"SUBMITS_PER_MINUTE": 2, "READS_PER_MINUTE": 3}
    prefix = f"{project.TASKQUEUE['KEY_PREFIX']}-throttles"
    settings.TASKQUEUE = {**project.TASKQUEUE, "API": limits, "KEY_PREFIX": prefix}


def test_each_caller_and_scope_has_its_own_counter(few, alice, bob, plain_type):
    assert [alice.submit(task_type=plain_type).status_code for _ in range(3)] == [201, 201, 429]
    assert [alice.get(TASKS).status_code for _ in range(4)] == [200, 200, 200, 429]
    assert bob.submit(task_type=plain_type).status_code == 201
    refused = alice.submit(task_type=plain_type)
    assert refused.data["code"] == "throttled"
    assert 1 <= int(refused.headers["Retry-After"]) <= 10**6


def test_processes_reserve_blocks_of_calls_within_the_limit(settings, monkeypatch):
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


def test_without_redis_every_call_is_allowed(few, index_away, alice):
    assert [alice.get(TASKS).status_code for _ in range(5)] == [200] * 5
    assert breaker.is_open  # so the next calls do not wait for Redis


def test_a_counter_expires_and_shares_the_slot_of_the_index(settings):
    """A Redis Cluster refuses a counter in another slot."""
    index = get_index()
    assert [index.count_calls("test", calls, 60) for calls in (1, 2)] == [1, 3]
    key = index.keys.throttle("test")
    assert key_slot(key.encode()) == key_slot(index.keys.prefix.encode())
    assert 0 < index._client.ttl(key) <= 60
    index._client.delete(key)
