"""The garbage collector rests while many tasks are made."""

import gc
import os
import threading
from collections.abc import Iterator

import pytest

from queue_app.core.counters import MOST, collector_paused


@pytest.fixture(autouse=True)
def on() -> Iterator[None]:
    gc.enable()
    yield
    gc.enable()


def test_the_collector_rests_inside_the_block_and_works_after_it():
    with collector_paused(1000):
        assert not gc.isenabled()
    assert gc.isenabled()


def test_the_collector_works_after_an_error():
    with pytest.raises(ZeroDivisionError), collector_paused(1000):
        raise ZeroDivisionError
    assert gc.isenabled()


def test_a_collector_that_the_project_has_switched_off_stays_off():
    gc.disable()
    with collector_paused(1000):
        assert not gc.isenabled()
    assert not gc.isenabled()


def test_the_collector_works_during_a_call_that_takes_long():
    with collector_paused(MOST + 1):
        assert gc.isenabled()


def test_a_process_that_another_thread_forks_meanwhile_collects():
    paused, forked = threading.Event(), threading.Event()

    def make_many() -> None:
        with collector_paused(1000):
            paused.set()
            forked.wait()

    thread = threading.Thread(target=make_many)
    thread.start()
    paused.wait()
    child = os.fork()
    if not child:
        os._exit(0 if gc.isenabled() else 1)
    forked.set()
    thread.join()
    assert os.waitpid(child, 0)[1] == 0
    assert gc.isenabled()
