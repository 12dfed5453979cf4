"""How often one caller may call, counted in Redis: a courtesy between callers, not a wall against attacks.

What must hold exactly (pending tasks of a user, length of a queue) is counted in the rows.
"""

from __future__ import annotations

import hashlib
import time
from typing import Any, Final

from rest_framework.request import Request
from rest_framework.throttling import BaseThrottle

from queue_app import conf
from queue_app.exceptions import IndexUnavailable
from queue_app.index import get_index
from queue_app.services.hints import breaker

WINDOW_SECONDS: Final = 60
SCOPES: Final = ("submits", "reads", "heavy")


class ScopedThrottle(BaseThrottle):
    """Counts the calls of a user in windows of a minute; the view names the scope of each method."""

    def __init__(self) -> None:
        self._wait: float | None = None

    def allow_request(self, request: Request, view: Any) -> bool:
        """Return whether the call is within the limit; while Redis is away all are."""
        user: Any = request.user
        scope = view.throttle_scope(request)
        limit: int = getattr(conf.get().api, f"{scope}_per_minute")
        # Who has no name is refused elsewhere, or asks for the health or the metrics, which need no Redis.
        if limit == 0 or breaker.is_open or not hasattr(user, "get_username") or not user.is_authenticated:
            return True
        now = time.time()
        window = int(now // WINDOW_SECONDS)
        if self._count(scope, user.get_username(), window) <= limit:
            return True
        self._wait = (window + 1) * WINDOW_SECONDS - now
        return False

    def wait(self) -> float | None:
        """Return the seconds until the next window."""
        return self._wait

    def _count(self, scope: str, name: str, window: int) -> int:
        caller = hashlib.sha256(name.encode(errors="replace")).hexdigest()[:24]
        began = time.monotonic()
        try:
            return get_index().count_call(f"{scope}:{caller}:{window}", 2 * WINDOW_SECONDS)
        except IndexUnavailable:
            breaker.trip(time.monotonic() - began)
            return 0
