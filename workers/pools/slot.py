"""A slot of the process pool, as the worker sees it."""

import os
import signal
import socket
from contextlib import suppress

from queue_app.workers.context import ClaimedAttempt
from queue_app.workers.wire import Reader


class Slot:
    """A process, the connection to it, and the attempt that it runs (``held``)."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self.reader = Reader(connection)
        self.pid = 0  # unknown until the fork server reports it
        self.handle: int | None = None  # a pidfd: unlike a pid, it is never reused for another process
        self.held: ClaimedAttempt | None = None
        self.since = 0.0
        self.kill_reason = ""
        #: The signal to send as soon as the pid is known, and the attempt that it is meant for.
        self.delayed_signal: tuple[ClaimedAttempt, signal.Signals] | None = None

    def set_pid(self, pid: int) -> None:
        """Record the pid of the process, and send the signal that waits for it."""
        self.pid = pid
        if hasattr(os, "pidfd_open"):
            with suppress(OSError):
                self.handle = os.pidfd_open(pid)
        if self.delayed_signal is not None and self.delayed_signal[0] is self.held:
            self.kill(self.delayed_signal[1])

    def kill(self, number: signal.Signals, reason: str = "") -> None:
        """Send the process a signal, if it lives."""
        self.kill_reason = reason or self.kill_reason
        with suppress(ProcessLookupError, OSError):
            if self.handle is not None:
                signal.pidfd_send_signal(self.handle, number)
            elif self.pid:
                os.kill(self.pid, number)

    def close(self) -> None:
        """Close the connection and the handle."""
        self.connection.close()
        if self.handle is not None:
            os.close(self.handle)
            self.handle = None
