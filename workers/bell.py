"""What a loop sleeps on: rung by signal handlers and by other threads."""

from __future__ import annotations

import math
import time
from contextlib import suppress
from queue import Empty, SimpleQueue

#: A wait is made of pieces no longer than this. Python runs a signal's handler between two
#: steps of the main thread: for one that arrives after the last of these and before the
#: thread sleeps, the handler runs, and rings, only when the sleep is over.
PIECE_SECONDS = 1.0


class Bell:
    """Wakes the one thread that waits for it; rings before the wait count.

    Not an Event: setting one takes a lock, and a signal handler runs between any two steps
    of the main thread, also while that thread itself holds the lock. ``SimpleQueue.put`` is
    made to be called from there.
    """

    def __init__(self) -> None:
        self._rings: SimpleQueue[None] = SimpleQueue()

    def ring(self) -> None:
        """Wake the waiter, now or when it next waits; safe in a signal handler."""
        self._rings.put(None)

    def wait(self, seconds: float | None) -> None:
        """Sleep until the bell has rung since the last wait, at most ``seconds``."""
        deadline = math.inf if seconds is None else time.monotonic() + seconds
        while self._rings.empty() and (left := deadline - time.monotonic()) > 0:
            with suppress(Empty):
                self._rings.get(timeout=min(left, PIECE_SECONDS))
                break
        while not self._rings.empty():
            self._rings.get_nowait()
