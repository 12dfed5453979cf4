"""Values that all viewers of a process share for a moment."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

_all: list[Shared[Any]] = []


class Shared[T]:
    """Caches what ``make`` returns for some seconds, by key. Only one thread at a time makes a value.

    The others wait for it, so 100 viewers cost as much as one. Errors are not cached.
    """

    def __init__(self, make: Callable[[str], T], seconds: Callable[[str], float], *, limit: int = 100) -> None:
        self._make = make
        self._seconds = seconds
        self._limit = limit
        self._lock = threading.Lock()
        self._known: dict[str, tuple[float, T]] = {}
        _all.append(self)

    def get(self, key: str = "") -> T:
        """Return the value of a key; make a new one if the cached one is too old."""
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
        with self._lock:
            self._known.clear()


def forget() -> None:
    """Drop all shared values, so that staff see the effect of their action at once."""
    for shared in _all:
        shared.forget()
