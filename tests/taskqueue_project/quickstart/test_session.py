"""Signals end a session."""

import os
import signal
import threading

import pytest

from taskqueue_project.quickstart.session import _signals_as_interrupts

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def ended_by(number: signal.Signals) -> None:
    """Send a signal, and send all signals again while it is handled."""
    with _signals_as_interrupts():
        try:
            os.kill(os.getpid(), number)
            threading.Event().wait(10)  # the signal ends it
        finally:
            for again in SIGNALS:
                os.kill(os.getpid(), again)


@pytest.mark.parametrize("number", SIGNALS, ids=lambda number: number.name)
def test_every_signal_counts_as_ctrl_c_and_a_second_one_is_ignored(number):
    before = signal.getsignal(number)
    with pytest.raises(KeyboardInterrupt):
        ended_by(number)
    assert signal.getsignal(number) is before
