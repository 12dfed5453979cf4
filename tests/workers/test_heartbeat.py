"""The heartbeat goes on until it is stopped or the worker is lost."""

import logging
import os
import threading

import pytest
from django.db import OperationalError

from queue_app.workers.background import Heartbeat


@pytest.fixture
def lost() -> list[str]:
    """Reasons with which ``on_lost`` was called."""
    return []


@pytest.mark.parametrize(("alive", "why"), [(True, []), (False, ["it was declared dead"])])
def test_a_beat(lost, alive, why):
    assert Heartbeat(1, lambda: alive, lost.append).run_once() is alive
    assert lost == why


@pytest.mark.parametrize("error", [OperationalError("gone\naway"), RuntimeError("anything")])
def test_a_beat_that_fails_is_logged_and_not_the_last(lost, caplog, error):
    def beat() -> bool:
        raise error

    caplog.set_level(logging.WARNING, "taskqueue")
    assert Heartbeat(1, beat, lost.append).run_once() is True
    assert lost == []
    assert caplog.records[0].getMessage() in ("heartbeat failed: gone away", "heartbeat failed")


def test_it_beats_until_it_is_stopped(lost):
    beats = threading.Semaphore(0)
    heart = Heartbeat(0.001, lambda: beats.release() or True, lost.append)
    heart.start()
    for _ in range(3):
        assert beats.acquire(timeout=60)
    heart.stop()
    assert not heart._thread.is_alive()
    assert lost == []


def test_it_ends_when_the_worker_was_declared_dead(lost):
    heart = Heartbeat(0.001, lambda: False, lost.append)
    heart.start()
    heart._thread.join(60)
    assert not heart._thread.is_alive()
    assert lost == ["it was declared dead"]


@pytest.mark.parametrize(("supervisor", "why"), [(os.getppid(), []), (1 << 30, ["its supervisor is gone"])])
def test_it_watches_the_supervisor(lost, supervisor, why):
    beats = threading.Semaphore(0)
    heart = Heartbeat(0.001, lambda: beats.release() or True, lost.append, supervisor)
    heart.start()
    assert beats.acquire(timeout=60)
    if why:
        heart._thread.join(60)
    else:
        assert beats.acquire(timeout=60)
    heart.stop()
    assert lost == why
