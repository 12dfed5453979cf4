"""Limit how often a caller may call, counted in the index: a courtesy between callers, not a defence against attacks.

A process reserves calls from a caller's counter in blocks of a thousandth of the limit, and reserves another block when
one is used up. So most calls cost no round trip. A reserved call that is not used is lost for its window: the limit is
never exceeded, but many processes reach it a little early. PostgreSQL enforces the exact limits (pending tasks of a
user, length of a queue).
"""

import hashlib
import os
import time
from threading import Lock
from typing import Any, Final

from rest_framework.request import Request
from rest_framework.throttling import BaseThrottle

from queue_app import conf
from queue_app.core.counters import MAX_CACHED, WINDOW_SECONDS, Tally
from queue_app.exceptions import IndexUnavailable
from queue_app.index import get_index
from queue_app.services.notify.index import breaker
from queue_app.services.way import follow

#: Number of blocks in a limit.
BLOCKS: Final = 1000


class Blocks:
    """The calls that this process has reserved and not used yet."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._left: dict[tuple[str, str, int, int], int] = {}  # (scope, caller, window, limit) -> calls

    def take(self, scope: str, name: str, window: int, limit: int) -> bool:
        """Use one call; return whether the limit allows it, or the index is unavailable."""
        key = (scope, name, window, limit)
        with self._lock:
            left = self._left.get(key, 0)
            if left:
                self._left[key] = left - 1
                return True
        size = max(1, limit // BLOCKS)
        counted = self._count(scope, name, window, size)
        if counted is None:
            return True
        granted = min(size, limit - (counted - size))
        if granted > 1:
            with self._lock:
                if len(self._left) >= MAX_CACHED:
                    self._left.clear()  # most belong to past windows
                self._left[key] = self._left.get(key, 0) + granted - 1
        return granted > 0

    def forget(self) -> None:
        """Drop all reserved calls: a forked child owns none of its parent's, and tests empty Redis."""
        self._lock = Lock()
        self._left.clear()

    def _count(self, scope: str, name: str, window: int, size: int) -> int | None:
        """Add to the counter of a caller and return it; ``None`` while the index is unavailable."""
        if breaker.is_open:
            return None
        caller = hashlib.sha256(name.encode(errors="replace")).hexdigest()[:24]
        began = time.monotonic()
        try:
            return get_index().count_calls(f"{scope}:{caller}:{window}", size, 2 * WINDOW_SECONDS)
        except IndexUnavailable:
            breaker.trip(time.monotonic() - began)
            follow()
            return None


schemas = Tally()
blocks = Blocks()
os.register_at_fork(after_in_child=blocks.forget)


class ScopedThrottle(BaseThrottle):
    """Count the calls of a user per minute; the view names the scope of each method."""

    _wait: float | None = None

    def allow_request(self, request: Request, view: Any) -> bool:
        """Return whether the call is within the limit; allow every call while the index is unavailable."""
        user: Any = request.user
        scope = view.accepted[request.method].throttle if request.method in view.accepted else "reads"
        limit: int = getattr(conf.get().api, f"{scope}_per_minute")
        # Other checks refuse anonymous callers, except for health and metrics, which must not need Redis.
        if limit == 0 or not hasattr(user, "get_username") or not user.is_authenticated:
            return True
        now = time.time()
        window = int(now // WINDOW_SECONDS)
        if blocks.take(scope, user.get_username(), window, limit):
            return True
        self._wait = (window + 1) * WINDOW_SECONDS - now
        return False

    def wait(self) -> float | None:
        return self._wait
