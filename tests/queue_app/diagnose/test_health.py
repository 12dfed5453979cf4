"""A probe asks one question at a time, abandons it in time, and reuses a lingering thread."""

import threading

import pytest
from django.db import connection

from queue_app.core import probe as probe_module
from queue_app.core.probe import Probe
from queue_app.diagnose import health
from queue_app.metrics.exposition import families
from tests.support.engine import index_refusing

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
    with index_refusing("maxmemory"):
        reasons = health.check(within=30).reasons
    assert reasons["index"].startswith("Redis refuses writes")
    assert reasons["scheduler"] == reasons["index"], "without writes no scheduler leads; to start one would not help"
