"""A slot of the process pool: signals to its process."""

import signal
import socket
import subprocess

import pytest

from queue_app.workers.pools.slot import Slot
from tests.workers.test_executor import claimed


@pytest.fixture
def slot():
    ours, theirs = socket.socketpair()
    slot = Slot(ours)
    yield slot
    slot.close()
    theirs.close()


@pytest.fixture
def process():
    with subprocess.Popen(["sleep", "600"]) as started:
        yield started
        started.kill()


def test_a_signal_waits_for_the_pid(slot, process):
    """The attempt runs, and the fork server's message with the pid was not read yet."""
    slot.held = claimed("a.task")
    slot.kill(signal.SIGKILL, "it writes to its connection")
    slot.kill(signal.SIGUSR1)  # of a timeout that comes after it
    slot.set_pid(process.pid)
    assert process.wait(60) == -signal.SIGKILL
    assert slot.kill_reason == "it writes to its connection"


def test_a_signal_that_waits_is_not_sent_to_the_next_attempt(slot, process):
    slot.held = claimed("a.task")
    slot.kill(signal.SIGKILL)
    slot.held = claimed("a.task")
    slot.set_pid(process.pid)
    slot.kill(signal.SIGTERM)
    assert process.wait(60) == -signal.SIGTERM
