"""A probe asks one question at a time, abandons it in time, and reuses a lingering thread."""

import socket
import threading
import time

import pytest
from django.core.cache import caches
from django.db import connection

from queue_app.core import probe as probe_module
from queue_app.core.probe import Probe
from queue_app.diagnose import health
from queue_app.index import redis_is_away
from queue_app.metrics.exposition import families
from queue_app.services.repair.detour import return_to_redis
from queue_app.services.upkeep.jobs import take_lead
from tests.support.engine import index_refusing, leave_redis, put

LIMIT = 60.0


def test_callers_share_a_question():
    release, calls = threading.Event(), []
    probe = Probe(lambda: (calls.append(1), release.wait(LIMIT)))
    assert [probe.ask().result(0.01) for _ in range(3)] == [None] * 3
    assert len(calls) == 1
    release.set()
    assert probe.ask().result(LIMIT) is not None


def test_an_abandoned_question_is_asked_again(override):
    override(probe_module, ABANDON_SECONDS=0.0)
    release, calls = threading.Event(), []
    probe = Probe(lambda: (calls.append(1), release.wait(LIMIT)), linger=LIMIT)
    probe.ask().result(0.01)
    probe.ask().result(0.01)
    assert len(calls) == 2
    release.set()


def test_an_error_is_none():
    assert Probe(lambda: 1 / 0).ask().result(LIMIT) is None


def test_a_lingering_thread_asks_again_and_calls_on_end():
    gone, asked = threading.Event(), []

    def question():
        asked.append(1)
        if len(asked) == 2:
            probe._asker._linger = 0.0
        return threading.current_thread()

    probe = Probe(question, linger=LIMIT, on_end=gone.set)
    first = probe.ask().result(LIMIT)
    assert not gone.is_set()
    assert probe.ask().result(LIMIT) is first
    assert gone.wait(LIMIT)
    assert probe.ask().result(LIMIT) is not first


def test_without_linger_each_question_has_its_own_thread():
    gone = threading.Semaphore(0)
    probe = Probe(threading.current_thread, on_end=gone.release)
    first = probe.ask().result(LIMIT)
    assert gone.acquire(timeout=LIMIT)
    assert probe.ask().result(LIMIT) is not first


def test_no_question_is_lost_when_the_thread_ends():
    probe = Probe(lambda: 1, linger=0.0001)
    assert [probe.ask().result(LIMIT) for _ in range(2000)] == [1] * 2000


@pytest.fixture
def read_only(engine):
    """Make new connections to the database read-only."""
    with connection.cursor() as cursor:
        name = connection.ops.quote_name(connection.settings_dict["NAME"])
        cursor.execute(f"ALTER DATABASE {name} SET default_transaction_read_only = on")
        yield
        cursor.execute(f"ALTER DATABASE {name} RESET default_transaction_read_only")


def test_a_read_only_database_is_not_ready(read_only):
    reasons = health.check(within=30).reasons
    assert reasons["database"] == "The database is read-only, like a standby: no task is accepted or started."
    shown = {family.metric.name: family.samples for family in families(health.collect(within=30))}
    assert shown["up"] == {("redis",): 1.0, ("postgresql",): 0.0}


def test_a_redis_that_refuses_writes_is_why_the_index_is_not_ready(engine):
    take_lead("me", 15)
    with index_refusing("maxmemory"):
        reasons = health.check(within=30).reasons
    assert list(reasons) == ["index"]
    assert reasons["index"].startswith("Redis refuses writes")


@pytest.fixture
def frozen_redis(engine, settings):
    """Claims read the rows, and the project's Redis accepts connections and says nothing."""
    with socket.create_server(("127.0.0.1", 0), backlog=100) as server:
        frozen = settings.CACHES["default"] | {
            "LOCATION": f"redis://127.0.0.1:{server.getsockname()[1]}/0",
            "OPTIONS": {"SOCKET_TIMEOUT": 2 * LIMIT},
        }
        settings.CACHES = {**settings.CACHES, "frozen": frozen}
        settings.TASKQUEUE = {**settings.TASKQUEUE, "REDIS_ALIAS": "frozen"}
        leave_redis("It does not answer.")
        redis_is_away.clear()  # another process has let claims leave it
        yield
        caches["frozen"].close()


def test_a_frozen_redis_delays_no_probe_while_claims_read_the_rows(frozen_redis):
    take_lead("me", 15)
    began = time.monotonic()
    found = health.check(within=LIMIT)
    assert (found.reasons, found.way.is_rows, found.way.because) == ({}, True, "It does not answer.")
    put()
    shown = {family.metric.name: family.samples for family in families(health.collect(within=4))}
    assert time.monotonic() - began < LIMIT / 2
    assert shown["up"] == {("redis",): 0.0, ("postgresql",): 1.0}
    assert shown["index_way"] == {("redis",): 0.0, ("rows",): 1.0}
    assert 0 < shown["index_away_seconds"][()] < LIMIT
    assert sum(shown["queue_depth"].values()) == shown["index_ready"][()] == 1


def test_a_redis_that_answers_again_is_up_before_claims_return(engine):
    leave_redis()
    shown = {family.metric.name: family.samples for family in families(health.collect(within=30))}
    assert (shown["up"]["redis",], shown["index_away_seconds"][()] > 0) == (1.0, True)
    assert return_to_redis()
    shown = {family.metric.name: family.samples for family in families(health.collect(within=30))}
    assert (shown["index_way"]["redis",], shown["index_away_seconds"][()]) == (1.0, 0.0)
