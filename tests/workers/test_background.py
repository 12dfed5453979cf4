"""The threads of a worker: no wake-up call is lost, and heartbeats say that it lives."""

import logging
import os
import signal
import threading
import time
import uuid

import pytest
from django.db import OperationalError

from queue_app.exceptions import IndexUnavailable
from queue_app.registry import type_of
from queue_app.services.worker import registration as service
from queue_app.workers import background as module
from queue_app.workers.background import Heartbeat, WakeListener
from queue_app.workers.lifecycle import Wakeup
from queue_app.workers.transport.base import DirectTransport
from tests.support.engine import put
from tests.support.waiting import until
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


def until_ended(name: str) -> None:
    """Wait until no thread of this name runs."""
    until(lambda: all(thread.name != name for thread in threading.enumerate()), f"the thread {name} ends")


@pytest.mark.parametrize("called", [True, False])
def test_a_wait(listener, woken, transport, called):
    transport.wait_for_wake = lambda *_: called
    listener.run_once()
    assert woken == [called]


@pytest.mark.parametrize("error", [IndexUnavailable("gone"), RuntimeError("anything")])
def test_a_wait_that_fails_is_no_call(listener, woken, transport, error):
    def wait(*_):
        raise error

    transport.wait_for_wake = wait
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


def test_it_ends_after_the_wait_under_way(listener, transport):
    waits = threading.Semaphore(0)
    transport.wait_for_wake = lambda *_: waits.release()
    listener.start()
    assert waits.acquire(timeout=60)
    listener.stop()
    until_ended("wake-listener")


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


# -- heartbeats ------------------------------------------------------------------------------------------------------


@pytest.fixture
def lost() -> list[str]:
    """Reasons with which ``on_lost`` was called."""
    return []


@pytest.mark.parametrize(("alive", "why"), [(True, []), (False, ["it was declared dead"])])
def test_a_beat(lost, alive, why):
    assert Heartbeat(1, lambda: alive, lost.append).run_once() is alive
    assert lost == why


def test_an_outage_is_logged_once_and_so_is_its_end(lost, caplog):
    answers = iter([OperationalError("gone\naway"), OperationalError("gone"), True])

    def beat() -> bool:
        answer = next(answers)
        if isinstance(answer, Exception):
            raise answer
        return answer

    caplog.set_level(logging.INFO, "taskqueue")
    heart = Heartbeat(1, beat, lost.append)
    assert [heart.run_once() for _ in range(3)] == [True, True, True]
    assert lost == []
    assert caplog.messages == ["heartbeat failed: PostgreSQL: gone away; trying again", "heartbeats succeed again"]


def test_a_beat_with_an_unexpected_error_is_logged_and_not_the_last(lost, caplog):
    def beat() -> bool:
        raise RuntimeError("anything")

    assert Heartbeat(1, beat, lost.append).run_once() is True
    assert lost == []
    assert caplog.messages == ["heartbeat failed"]


def test_it_beats_until_it_is_stopped(lost):
    beats = threading.Semaphore(0)
    heart = Heartbeat(0.001, lambda: beats.release() or True, lost.append)
    heart.start()
    for _ in range(3):
        assert beats.acquire(timeout=60)
    heart.stop()
    until_ended("heartbeat")
    assert lost == []


def test_it_ends_when_the_worker_was_declared_dead(lost):
    heart = Heartbeat(0.001, lambda: False, lost.append)
    heart.start()
    until_ended("heartbeat")
    assert lost == ["it was declared dead"]


@pytest.mark.parametrize(("supervisor", "why"), [(os.getppid(), []), (1 << 30, ["its supervisor is gone"])])
def test_it_watches_the_supervisor(lost, supervisor, why):
    beats = threading.Semaphore(0)
    heart = Heartbeat(0.001, lambda: beats.release() or True, lost.append, supervisor)
    heart.start()
    assert beats.acquire(timeout=60)
    if why:
        until_ended("heartbeat")
    else:
        assert beats.acquire(timeout=60)
    heart.stop()
    assert lost == why


def test_a_hurried_beat_does_not_wait_for_its_turn(lost):
    beats = threading.Semaphore(0)
    heart = Heartbeat(3600, lambda: beats.release() or True, lost.append)
    heart.start()
    for _ in range(2):
        heart.hurry()
        assert beats.acquire(timeout=60)
    heart.stop()
    until_ended("heartbeat")
