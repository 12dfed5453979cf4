"""Values that all viewers of a process share for a moment."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable


class Shared[T]:
    """Remembers what ``make`` returned for so many seconds, by key; only one thread makes a value at a time.

    The others wait for it: a hundred viewers cost what one costs. An error is not remembered.
    """

    def __init__(self, make: Callable[[str], T], seconds: Callable[[str], float], *, limit: int = 100) -> None:
        self._make = make
        self._seconds = seconds
        self._limit = limit
        self._lock = threading.Lock()
        self._known: dict[str, tuple[float, T]] = {}

    def get(self, key: str = "") -> T:
        """Return the value of a key, made now if the one at hand is too old."""
        with self._lock:
            known = self._known.get(key)
            if known is not None and time.monotonic() < known[0]:
                return known[1]
            value = self._make(key)
            if len(self._known) >= self._limit:
                self._known.clear()
            self._known[key] = (time.monotonic() + self._seconds(key), value)
            return value

    def forget(self) -> None:
        """Forget everything: after an action its author wants to see what it did."""
        with self._lock:
            self._known.clear()
