"""A process of a pool, as the worker sees it."""

from __future__ import annotations

import os
import signal
import socket
from contextlib import suppress

from queue_app.workers.context import ClaimedAttempt
from queue_app.workers.wire import Reader


class Slot:
    """A line to a process, and what is known of it; ``held`` is what it runs."""

    def __init__(self, line: socket.socket) -> None:
        self.line = line
        self.reader = Reader(line)
        self.pid = 0  # not known before the fork server says it
        self.handle: int | None = None  # a descriptor that stands for this process and no later one of its number
        self.held: ClaimedAttempt | None = None
        self.since = 0.0
        self.why = ""  # why it was killed
        self.owed: tuple[ClaimedAttempt, signal.Signals] | None = None  # a signal sent before its pid was known

    def kill(self, number: signal.Signals, why: str = "") -> None:
        """Send the process a signal, if it lives."""
        self.why = why or self.why
        with suppress(ProcessLookupError, OSError):
            if self.handle is not None:
                signal.pidfd_send_signal(self.handle, number)
            elif self.pid:
                os.kill(self.pid, number)

    def close(self) -> None:
        """Let go of the process."""
        self.line.close()
        if self.handle is not None:
            os.close(self.handle)
            self.handle = None
