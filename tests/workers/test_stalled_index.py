"""Redis accepts connections and does not answer: PostgreSQL work continues."""

import time
from collections.abc import Callable
from datetime import timedelta
from urllib.parse import urlsplit

import pytest
from django.utils import timezone
from redis.exceptions import TimeoutError as RedisTimeoutError

from queue_app.core.states import Status
from queue_app.index import client, notifier
from queue_app.models import Task
from queue_app.services.enqueue.store import enqueue
from queue_app.services.notify.index import HOLD_BACK_FACTOR, breaker
from queue_app.services.repair.reconcile import reconcile_everything
from tests.support.engine import assert_index_agrees, new, put, redis_client, status
from tests.support.proxy import Proxy
from tests.workers.stage import StillScheduler, tick

STALL = 1.0  # seconds until the client times out


@pytest.fixture
def proxy(engine, settings, monkeypatch):
    """Connect to Redis through a proxy."""
    cache = settings.CACHES["default"]
    port = urlsplit(cache["LOCATION"]).port
    monkeypatch.setattr(client, "SOCKET_SECONDS", STALL)
    with Proxy(port) as between:
        location = cache["LOCATION"].replace(f":{port}", f":{between.port}")
        alias = f"far-{between.port}"  # clients are kept by alias, and the next proxy has another port
        settings.CACHES = {**settings.CACHES, alias: {**cache, "LOCATION": location}}
        settings.TASKQUEUE = {**settings.TASKQUEUE, "REDIS_ALIAS": alias}
        yield between
        between.resume()


def seconds(action: Callable[[], object]) -> float:
    """Return how long an action takes."""
    began = time.monotonic()
    action()
    return time.monotonic() - began


def test_a_client_without_timeouts_gets_some(proxy):
    assert redis_client().connection_pool.connection_kwargs["socket_timeout"] == STALL


def test_a_new_connection_waits_less_for_its_greeting_than_for_other_answers(proxy, monkeypatch):
    pool = redis_client().connection_pool
    pool.disconnect()
    proxy.stall()
    monkeypatch.setattr(client, "GREETING_SECONDS", 0.05)
    pool.connection_kwargs["socket_timeout"] = 60

    def ask() -> None:
        with pytest.raises(RedisTimeoutError):
            redis_client().ping()

    assert seconds(ask) < 30


def test_a_caller_waits_a_little_for_answers_to_many_notifications(proxy, monkeypatch):
    pool = redis_client().connection_pool
    pool.disconnect()
    pool.connection_kwargs["socket_timeout"] = 60
    monkeypatch.setattr(notifier, "GATHER_SECONDS", 0)
    monkeypatch.setattr(notifier, "ANSWER_SECONDS", 0.05)
    enqueue(new())
    proxy.stall()

    def fill() -> None:
        for _ in range(2 * notifier.MAX_UNANSWERED):
            enqueue(new())

    assert seconds(fill) < 30
    assert breaker.is_open
    breaker.reset()


@pytest.mark.slow
@pytest.mark.serial
def test_enqueue_and_the_scheduler_go_on_while_redis_stalls(proxy, history):
    """The first caller waits for one timeout; then all callers skip the index for a while."""
    later = put(run_after=timezone.now() + timedelta(hours=1))
    scheduler = StillScheduler()
    scheduler.run_once()
    proxy.stall()
    Task.objects.filter(pk=later).update(run_after=timezone.now())
    began = time.monotonic()
    waits = [seconds(lambda: enqueue(new())) for _ in range(200)]
    assert sum(each >= STALL for each in waits) <= 1 + (time.monotonic() - began) / (HOLD_BACK_FACTOR * STALL)
    ran = tick(scheduler, "rebuild", "due", "reap")
    assert ran == ["rebuild", "due", "reap"], "the rebuild finds out, and the others go on"
    ran = tick(scheduler, "rebuild", "due", "reap")
    assert ran == ["due", "reap"], "nothing is asked of the index, so the rebuild is not even tried"
    assert status(later) == Status.QUEUED
    assert scheduler.leads
    proxy.resume()
    breaker.reset()
    scheduler.ask_again()
    reconcile_everything()
    assert len(assert_index_agrees().waiting) == 201
