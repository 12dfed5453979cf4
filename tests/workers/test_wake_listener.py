"""The wake listener receives every call, and lets the worker claim from time to time without one."""

import signal
import threading
import time
import uuid

import pytest

from queue_app.exceptions import IndexUnavailable
from queue_app.registry import type_of
from queue_app.services.worker import registration as service
from queue_app.workers import background as module
from queue_app.workers.background import WakeListener
from queue_app.workers.lifecycle import Wakeup
from queue_app.workers.transport.direct import DirectTransport
from tests.support.engine import put
from tests.workers.chores import quick


@pytest.fixture
def woken() -> list[bool]:
    """Whether the worker was called, for each time that it was woken."""
    return []


@pytest.fixture
def transport() -> DirectTransport:
    """The transport of the listener; a test replaces its ``wait_for_wake``."""
    return DirectTransport()


@pytest.fixture
def listener(woken, transport, monkeypatch) -> WakeListener:
    """A listener that does not pause after an error."""
    monkeypatch.setattr(module, "RETRY_SECONDS", 0)
    return WakeListener(uuid.uuid4(), transport, lambda *, called: woken.append(called))


@pytest.mark.parametrize("called", [True, False])
def test_a_wait(listener, woken, transport, monkeypatch, called):
    monkeypatch.setattr(transport, "wait_for_wake", lambda *_: called)
    listener.run_once()
    assert woken == [called]


@pytest.mark.parametrize("error", [IndexUnavailable("gone"), RuntimeError("anything")])
def test_a_wait_that_fails_is_no_call(listener, woken, transport, monkeypatch, error):
    def wait(*_):
        raise error

    monkeypatch.setattr(transport, "wait_for_wake", wait)
    listener.run_once()
    assert woken == [False]


def test_a_call_of_the_index(hire):
    worker = hire()
    worker.run_once()
    rung = threading.Event()
    listener = WakeListener(worker.id, worker.transport, lambda *, called: rung.set() if called else None)
    listener.start()
    put(type_of(quick))
    assert rung.wait(60)
    listener.stop()
    service.deregister(worker.id, worker.profile, tasks_done=0)


def test_it_ends_after_the_wait_under_way(listener, transport, monkeypatch):
    waits = threading.Semaphore(0)
    monkeypatch.setattr(transport, "wait_for_wake", lambda *_: waits.release())
    listener.start()
    assert waits.acquire(timeout=60)
    listener.stop()
    listener._thread.join(60)
    assert not listener._thread.is_alive()


# -- the wakeup ------------------------------------------------------------------------------------------------------


def test_a_call_before_the_wait_counts():
    wakeup = Wakeup()
    wakeup.set()
    wakeup.wait(None)


def test_many_calls_are_one():
    wakeup = Wakeup()
    for _ in range(10):
        wakeup.set()
    wakeup.wait(None)
    began = time.monotonic()
    wakeup.wait(0.05)
    assert time.monotonic() - began >= 0.05


@pytest.mark.parametrize("seconds", [0, -1])
def test_no_time_to_wait(seconds):
    Wakeup().wait(seconds)


def test_a_call_of_another_thread_wakes():
    wakeup = Wakeup()
    timer = threading.Timer(0.02, wakeup.set)
    timer.start()
    wakeup.wait(None)
    timer.join()


def test_a_signal_handler_may_call_at_any_point():
    """An Event would lock up here: its handler waits for a lock that the interrupted thread holds."""
    wakeup, rings = Wakeup(), 0

    def handle(*_) -> None:
        nonlocal rings
        rings += 1
        wakeup.set()

    before = signal.signal(signal.SIGALRM, handle)
    signal.setitimer(signal.ITIMER_REAL, 0.000_5, 0.000_5)
    try:
        while rings < 500:
            wakeup.wait(0)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def test_a_signal_that_does_not_interrupt_the_wait_still_ends_it(monkeypatch):
    """The signal arrives in the last instant before the sleep: another thread takes it."""
    monkeypatch.setattr("queue_app.workers.lifecycle.MAX_SLEEP_SECONDS", 0.05)
    wakeup = Wakeup()
    before = signal.signal(signal.SIGALRM, lambda *_: wakeup.set())
    other = threading.Timer(0.02, lambda: signal.pthread_kill(threading.get_ident(), signal.SIGALRM))
    other.start()
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGALRM})
    try:
        wakeup.wait(None)
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGALRM})
        other.join()
        signal.signal(signal.SIGALRM, before)
