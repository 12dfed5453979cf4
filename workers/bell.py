"""What a loop sleeps on: rung by signal handlers and by other threads."""

from __future__ import annotations

from contextlib import suppress
from queue import Empty, SimpleQueue


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
        with suppress(Empty):
            self._rings.get(timeout=None if seconds is None else max(0.0, seconds))
        while not self._rings.empty():
            self._rings.get_nowait()
