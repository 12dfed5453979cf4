"""The bell: no ring is lost, and signal handlers may ring it."""

import signal
import threading
import time

import pytest

from queue_app.workers.lifecycle import Bell


def test_a_ring_before_the_wait_counts():
    bell = Bell()
    bell.ring()
    bell.wait(None)


def test_many_rings_are_one():
    bell = Bell()
    for _ in range(10):
        bell.ring()
    bell.wait(None)
    began = time.monotonic()
    bell.wait(0.05)
    assert time.monotonic() - began >= 0.05


@pytest.mark.parametrize("seconds", [0, -1])
def test_no_time_to_wait(seconds):
    Bell().wait(seconds)


def test_a_ring_of_another_thread_wakes():
    bell = Bell()
    timer = threading.Timer(0.02, bell.ring)
    timer.start()
    bell.wait(None)
    timer.join()


def test_a_signal_handler_may_ring_at_any_point():
    """An Event would lock up here: its handler waits for a lock that the interrupted thread holds."""
    bell, rings = Bell(), 0

    def handle(*_) -> None:
        nonlocal rings
        rings += 1
        bell.ring()

    before = signal.signal(signal.SIGALRM, handle)
    signal.setitimer(signal.ITIMER_REAL, 0.000_5, 0.000_5)
    try:
        while rings < 500:
            bell.wait(0)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def test_a_signal_that_does_not_interrupt_the_wait_still_ends_it(monkeypatch):
    """As one does that arrives in the last instant before the sleep: here another thread takes it."""
    monkeypatch.setattr("queue_app.workers.lifecycle.PIECE_SECONDS", 0.05)
    bell = Bell()
    before = signal.signal(signal.SIGALRM, lambda *_: bell.ring())
    other = threading.Timer(0.02, lambda: signal.pthread_kill(threading.get_ident(), signal.SIGALRM))
    other.start()
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGALRM})
    try:
        bell.wait(None)
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGALRM})
        other.join()
        signal.signal(signal.SIGALRM, before)
