"""Limits on what the open requests of a process hold: places of those that wait, and connections to PostgreSQL."""

import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final, Self

from django.http import HttpRequest

from queue_app import conf
from queue_app.exceptions import TaskQueueError
from queue_app.sql.database import close_idle

MAX_SECONDS: Final = 60
#: Maximum seconds for which a request waits for a connection.
CONNECTION_SECONDS: Final = 10.0


class TooManyWaiters(TaskQueueError, code="too_many_waiters"):
    """This process already holds the maximum number of waiting requests."""


class TooManyOfCaller(TaskQueueError, code="too_many_of_caller"):
    """This process already holds the maximum number of waiting requests of one caller."""

    wait = 2.0


class TooBusy(TaskQueueError, code="too_busy"):
    """All connections that this process may open to the database are in use."""


class Place:
    """A taken place. It is given back once: by ``leave``, or when nothing refers to it any more.

    A server may drop a response whose client has gone before it starts to send; then nothing calls ``leave``.
    """

    def __init__(self, places: "Places", caller: str) -> None:
        self._places: Places | None = places
        self._caller = caller

    def leave(self) -> None:
        """Give the place back."""
        places, self._places = self._places, None
        if places is not None:
            places.give_back(self._caller)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.leave()

    def __del__(self) -> None:
        self.leave()


class Places:
    """The places of one kind in this process."""

    def __init__(self) -> None:
        self.taken = 0
        self._callers: Counter[str] = Counter()
        self._changed = threading.Condition(threading.RLock())  # a place may be deleted while this thread holds it

    def take(self, most: int, caller: str = "", most_of_caller: int | None = None, within: float = 0.0) -> Place:
        """Take a place, and wait for one up to ``within`` seconds.

        Raises ``TooManyWaiters`` if ``most`` are taken, and ``TooManyOfCaller`` if the caller has ``most_of_caller``.
        """
        until = time.monotonic() + within
        with self._changed:
            if most_of_caller is not None and self._callers[caller] >= most_of_caller:
                raise TooManyOfCaller("You have the maximum number of waiting requests open here; try again later.")
            while self.taken >= most:
                left = until - time.monotonic()
                if left <= 0:
                    raise TooManyWaiters("This process has the maximum number of waiting requests; try again later.")
                self._changed.wait(left)
            self.taken += 1
            self._callers[caller] += 1
        return Place(self, caller)

    def give_back(self, caller: str) -> None:
        """Free a place; ``Place`` calls it once."""
        with self._changed:
            self.taken -= 1
            self._callers[caller] -= 1
            if not self._callers[caller]:
                del self._callers[caller]
            self._changed.notify()


#: ``?wait=`` and worker polls; event streams; requests that use the database under ASGI.
waiters, streams, databases = Places(), Places(), Places()


def is_asynchronous(request: HttpRequest) -> bool:
    """Return whether the request arrived over ASGI."""
    return hasattr(request, "scope")


def waiter(request: HttpRequest, caller: str) -> Place:
    """Take a place to wait in; under WSGI each waiting request occupies one of few threads."""
    settings = conf.get().api
    most = settings.max_streams if is_asynchronous(request) else settings.max_waiters
    return waiters.take(most, caller, settings.max_open_per_caller)


def stream(caller: str) -> Place:
    """Take a place for an event stream."""
    settings = conf.get().api
    return streams.take(settings.max_streams, caller, settings.max_open_per_caller)


class Database:
    """The right of one request to use the database.

    Under WSGI a thread keeps its connection, and there are few threads. Under ASGI every request has a thread of its
    own, so the number of connections must be limited, and each must be closed.
    """

    def __init__(self, request: HttpRequest) -> None:
        self._is_limited = is_asynchronous(request)
        self._place: Place | None = None

    def enter(self) -> None:
        """Wait until the request may use the database; raise ``TooBusy``."""
        if self._is_limited and self._place is None:
            try:
                self._place = databases.take(conf.get().api.max_connections, within=CONNECTION_SECONDS)
            except TooManyWaiters:
                raise TooBusy("This process has too many requests at once; try again later.") from None

    def leave(self) -> None:
        """Close the connection under ASGI, and let another request use the database."""
        if self._place is not None:
            close_idle()
            self._place.leave()
            self._place = None

    @contextmanager
    def idle(self) -> Iterator[None]:
        """Hold neither a connection nor the right to one during a block that waits."""
        close_idle()
        self.leave()
        yield
        self.enter()


@contextmanager
def limited() -> Iterator[None]:
    """Use the database of an ASGI process outside of a request; raise ``TooBusy``."""
    with databases.take(conf.get().api.max_connections, within=CONNECTION_SECONDS):
        try:
            yield
        finally:
            close_idle()
