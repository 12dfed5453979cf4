"""The waker: the worker hears of every call, and looks by itself now and then."""

import threading
import uuid

import pytest

from queue_app.exceptions import IndexUnavailable
from queue_app.registry import type_of
from queue_app.services.repair import workers as service
from queue_app.workers import wake_listener as module
from queue_app.workers.wake_listener import WakeListener
from tests.support.engine import put
from tests.workers.chores import quick


@pytest.fixture
def woken() -> list[bool]:
    """Whether the worker was called, for each time that it was woken."""
    return []


@pytest.fixture
def waker(woken, monkeypatch) -> WakeListener:
    """A waker that waits for nothing."""
    monkeypatch.setattr(module, "RETRY_SECONDS", 0)
    return WakeListener(uuid.uuid4(), lambda *, called: woken.append(called))


@pytest.mark.parametrize("called", [True, False])
def test_a_wait(waker, woken, monkeypatch, called):
    monkeypatch.setattr(module, "wait_for_wake", lambda *_: called)
    waker.run_once()
    assert woken == [called]


@pytest.mark.parametrize("error", [IndexUnavailable("gone"), RuntimeError("anything")])
def test_a_wait_that_fails_is_no_call(waker, woken, monkeypatch, error):
    def wait(*_):
        raise error

    monkeypatch.setattr(module, "wait_for_wake", wait)
    waker.run_once()
    assert woken == [False]


def test_a_call_of_the_index(hire):
    worker = hire()
    worker.run_once()
    rung = threading.Event()
    waker = WakeListener(worker.id, lambda *, called: rung.set() if called else None)
    waker.start()
    put(type_of(quick))
    assert rung.wait(10)
    waker.stop()
    service.deregister(worker.id, worker.profile, tasks_done=0)


def test_it_ends_after_the_wait_under_way(waker, monkeypatch):
    waits = threading.Semaphore(0)
    monkeypatch.setattr(module, "wait_for_wake", lambda *_: waits.release())
    waker.start()
    assert waits.acquire(timeout=10)
    waker.stop()
    waker._thread.join(10)
    assert not waker._thread.is_alive()
