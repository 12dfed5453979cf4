"""Count by name in this process: failed logins of the API and the admin, and requests for the OpenAPI document."""

import time
from collections import Counter
from threading import Lock
from typing import Final

WINDOW_SECONDS: Final = 60
MAX_CACHED: Final = 10_000


class Tally:
    """Counts by name in this process and this minute, without Redis: what attackers do must cost no round trip."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._window = 0
        self._counts: Counter[tuple[str, ...]] = Counter()

    def wait(self, *name: str, limit: int) -> float | None:
        """Return the seconds until the next minute if the count of a name has reached its limit, else ``None``."""
        now = time.time()
        with self._lock:
            self._turn(now)
            is_full = 0 < limit <= self._counts[name]
        return (self._window + 1) * WINDOW_SECONDS - now if is_full else None

    def add(self, *name: str) -> None:
        with self._lock:
            self._turn(time.time())
            self._counts[name] += 1

    def forget(self) -> None:
        self._window = 0

    def _turn(self, now: float) -> None:
        window = int(now // WINDOW_SECONDS)
        if window != self._window or len(self._counts) > MAX_CACHED:
            self._window = window
            self._counts.clear()


#: By the address of the connection and the name of the user.
failed_logins = Tally()
