"""Requests that wait: how many one process holds, and for how long."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from django.http import HttpRequest

from queue_app import conf
from queue_app.api.fields import whole_number
from queue_app.api.task_filters import once

MAX_SECONDS: Final = 60
seconds_of: Final[Any] = once(whole_number(0, MAX_SECONDS))


class Places:
    """So many may wait at once; whoever finds no place must not."""

    def __init__(self) -> None:
        self.taken = 0
        self._lock = threading.Lock()

    def take(self, most: int) -> bool:
        """Take a place, if there is one."""
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
        """Hold a place for the time of a block; yields whether there was one."""
        taken = self.take(most)
        try:
            yield taken
        finally:
            if taken:
                self.leave()


waiters, streams = Places(), Places()


def is_asynchronous(request: HttpRequest) -> bool:
    """Whether the request came over ASGI."""
    return hasattr(request, "scope")


def most_waiters(request: HttpRequest) -> int:
    """Return how many requests may wait: under WSGI each holds a thread of few."""
    settings = conf.get().api
    return settings.max_streams if is_asynchronous(request) else settings.max_waiters
