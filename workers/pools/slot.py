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
        self._delayed: tuple[ClaimedAttempt, signal.Signals] | None = None

    def set_pid(self, pid: int) -> None:
        """Record the pid of the process, and send the signal that waits for it."""
        self.pid = pid
        if hasattr(os, "pidfd_open"):
            with suppress(OSError):
                self.handle = os.pidfd_open(pid)
        if self._delayed is not None and self._delayed[0] is self.held:
            self.kill(self._delayed[1])

    def kill(self, number: signal.Signals, reason: str = "") -> None:
        """Send the process a signal, if it lives.

        The attempt may run before the message of the fork server with the pid was read. Then the signal waits for it.
        """
        self.kill_reason = reason or self.kill_reason
        with suppress(ProcessLookupError, OSError):
            if self.handle is not None:
                signal.pidfd_send_signal(self.handle, number)
            elif self.pid:
                os.kill(self.pid, number)
            elif self.held is not None and (self._delayed is None or number == signal.SIGKILL):
                self._delayed = self.held, number

    def close(self) -> None:
        self.connection.close()
        if self.handle is not None:
            os.close(self.handle)
            self.handle = None
