"""Limits on requests that wait: how many a process holds, and for how long."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from django.http import HttpRequest

from queue_app import conf

MAX_SECONDS: Final = 60


class Places:
    """Count the waiting requests of this process."""

    def __init__(self) -> None:
        self.taken = 0
        self._lock = threading.Lock()

    def take(self, most: int) -> bool:
        """Take a place; return ``False`` if ``most`` are taken."""
        with self._lock:
            if self.taken >= most:
                return False
            self.taken += 1
            return True

    def leave(self) -> None:
        """Give a place back."""
        with self._lock:
            self.taken -= 1

    @contextmanager
    def taking(self, most: int) -> Iterator[bool]:
        """Hold a place during a block; yield whether there was a free one."""
        taken = self.take(most)
        try:
            yield taken
        finally:
            if taken:
                self.leave()


waiters, streams = Places(), Places()


def is_asynchronous(request: HttpRequest) -> bool:
    """Return whether the request arrived over ASGI."""
    return hasattr(request, "scope")


def most_waiters(request: HttpRequest) -> int:
    """Return how many requests may wait; under WSGI each one occupies one of few threads."""
    settings = conf.get().api
    return settings.max_streams if is_asynchronous(request) else settings.max_waiters
