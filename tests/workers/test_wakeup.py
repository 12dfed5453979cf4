"""The wakeup: no call is lost, and signal handlers may call it."""

import signal
import threading
import time

import pytest

from queue_app.workers.lifecycle import Wakeup


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
