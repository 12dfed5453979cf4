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


def test_a_hurried_beat_does_not_wait_for_its_turn(lost):
    beats = threading.Semaphore(0)
    heart = Heartbeat(3600, lambda: beats.release() or True, lost.append)
    heart.start()
    for _ in range(2):
        heart.hurry()
        assert beats.acquire(timeout=60)
    heart.stop()
    assert not heart._thread.is_alive()
