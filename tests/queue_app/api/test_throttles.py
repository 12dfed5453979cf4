"""Rate limits of callers."""

from __future__ import annotations

import uuid
from base64 import b64encode

import pytest
from django.conf import settings as project
from django.contrib.auth import hashers
from django.test import Client
from redis.crc import key_slot

from queue_app.api import throttles
from queue_app.api.views import docs
from queue_app.core.counters import failed_logins
from queue_app.index import get_index
from queue_app.services.notify.index import breaker
from tests.support.faults import failing
from tests.support.index_state import client_of

TASKS = "/api/v1/tasks"


@pytest.fixture
def few(settings, override):
    """Allow 2 submissions and 3 reads in a window that does not end during the test."""
    override(throttles, WINDOW_SECONDS=10**6)
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


def test_processes_reserve_blocks_of_calls_within_the_limit(settings, override, monkeypatch):
    override(throttles, BLOCKS=4)
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
    assert 0 < client_of(index).ttl(key) <= 60
    client_of(index).delete(key)


@pytest.fixture
def basic(settings, alice):
    """Call with a password, from an address."""
    settings.TASKQUEUE = {**project.TASKQUEUE, "API": {"FAILED_LOGINS_PER_MINUTE": 3}}
    failed_logins.forget()

    def call(password: str, address: str = "10.0.0.1", name: str = "alice"):
        header = "Basic " + b64encode(f"{name}:{password}".encode()).decode()
        return Client(REMOTE_ADDR=address).get(
            TASKS, headers={"Authorization": header, "X-Forwarded-For": str(uuid.uuid4())}
        )

    yield call
    failed_logins.forget()


def test_wrong_passwords_are_throttled_before_they_are_hashed(basic):
    assert [basic("no").status_code for _ in range(3)] == [401] * 3
    with failing(hashers, "check_password"):
        refused = basic("wonderland")
    assert (refused.status_code, refused.json()["code"]) == (429, "throttled")
    assert 1 <= int(refused["Retry-After"]) <= 60
    assert basic("wonderland", "10.0.0.2").status_code == 200, "an attacker does not lock the user out elsewhere"
    assert basic("no", name="bob").status_code == 401


def test_the_login_of_the_admin_has_the_same_limit(basic, alice):
    alice.user.is_staff = True
    alice.user.save()

    def login(password, address="10.0.0.1"):
        form = {"username": "alice", "password": password}
        return Client(REMOTE_ADDR=address).post("/admin/login/", form)

    assert [login("no").status_code for _ in range(2)] == [200] * 2
    assert basic("no").status_code == 401, "they are counted together"
    with failing(hashers, "check_password"):
        assert "Too many failed logins. Try again in " in login("wonderland").content.decode()
    assert login("wonderland", "10.0.0.2").status_code == 302


def test_right_passwords_are_not_counted(basic):
    assert [basic("wonderland").status_code for _ in range(5)] == [200] * 5


def test_the_document_is_made_once_and_throttled(client, override, monkeypatch):
    throttles.schemas.forget()
    now = throttles.time.time()
    monkeypatch.setattr(throttles.time, "time", lambda: now)  # no call falls into the next minute
    first = client.get("/api/schema")
    with failing(docs, "document"):
        assert client.get("/api/schema").content == first.content
    override(docs, SCHEMAS_PER_MINUTE=2)
    refused = client.get("/api/schema")
    assert (refused.status_code, refused.json()["code"]) == (429, "throttled")
    throttles.schemas.forget()


def test_a_tally_ends_with_its_minute(monkeypatch):
    tally = throttles.Tally()
    tally.add("a")
    assert tally.wait("a", limit=1) is not None
    assert [tally.wait("a", limit=2), tally.wait("a", limit=0), tally.wait("b", limit=1)] == [None] * 3
    later = throttles.time.time() + 60
    monkeypatch.setattr(throttles.time, "time", lambda: later)
    assert tally.wait("a", limit=1) is None
