"""For rebuilds, an index with something of everything, and small steps."""

from datetime import UTC, datetime

import pytest

from queue_app.models import Queue, RuntimeSettings
from queue_app.services.control.queues import set_queue_limits
from queue_app.services.repair import rebuild
from queue_app.sql import snapshot
from tests.support.engine import put, put_many, take


@pytest.fixture
def full(engine):
    """Tasks of every state, limits of every kind; returns the worker."""
    hand = engine.worker("a b")
    Queue.objects.create(name="q")
    set_queue_limits("q", max_concurrent=2)
    settings = RuntimeSettings.objects.get()
    settings.max_concurrent = 9
    settings.save()
    put_many(3, queue="q")
    put("b", priority="high", capabilities=["g"])
    put_many(4)
    take(hand, 5)
    put(run_after=datetime(2030, 1, 1, tzinfo=UTC))
    return hand


@pytest.fixture
def small_pages(override):
    """Each step loads two tasks of each part."""
    override(rebuild, PAGE=1, LEAST=2)


@pytest.fixture
def no_statistics(monkeypatch):
    """The database has no estimate of the queued rows, whatever earlier tests left there."""
    monkeypatch.setattr(snapshot, "queued_estimate", lambda: 0)


@pytest.fixture
def between_steps(engine, monkeypatch, small_pages):
    """Before each step once claims are allowed, call the next function of this list."""
    calls = []
    plain = rebuild.Loader._step

    def step(self, parts):
        if engine.index.generation().state == "loading" and calls:
            calls.pop(0)()
        return plain(self, parts)

    monkeypatch.setattr(rebuild.Loader, "_step", step)
    return calls
