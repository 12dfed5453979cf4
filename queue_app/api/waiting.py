"""Limits on what the open requests of a process hold: places to wait, and connections to PostgreSQL."""

import asyncio
import threading
import time
from collections import Counter, deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, Final, Self

from django.http import HttpRequest

from queue_app import conf
from queue_app.exceptions import TaskQueueError
from queue_app.sql.connections import close_idle

MAX_SECONDS: Final = 60
#: Maximum seconds for which a request waits for a connection.
CONNECTION_SECONDS: Final = 10.0
TOO_BUSY: Final = "This process has too many requests at once; try again later."
#: Key in the scope of an ASGI request: the place that it waited for on the event loop.
PLACE: Final = "taskqueue.place"


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
        self._awaiting: deque[asyncio.Future[None]] = deque()  # requests that wait on an event loop

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

    async def take_on_loop(self, most: int, within: float) -> Place:
        """Take a place, and wait for one up to ``within`` seconds without a thread; raise ``TooManyWaiters``."""
        loop = asyncio.get_running_loop()
        until = loop.time() + within
        freed: asyncio.Future[None] | None = None
        while True:
            with self._changed:
                if self.taken < most:
                    return self.take(most)
                was_called, freed = freed is not None, loop.create_future()
                self._awaiting.insert(0 if was_called else len(self._awaiting), freed)
            try:
                async with asyncio.timeout_at(until):
                    await freed
            except BaseException as error:
                with self._changed:
                    if freed in self._awaiting:
                        self._awaiting.remove(freed)
                    else:
                        self._call_next()
                if isinstance(error, TimeoutError):
                    raise TooManyWaiters("All places stayed in use; try again later.") from None
                raise

    def give_back(self, caller: str) -> None:
        """Free a place; ``Place`` calls it once."""
        with self._changed:
            self.taken -= 1
            self._callers[caller] -= 1
            if not self._callers[caller]:
                del self._callers[caller]
            self._changed.notify()
            self._call_next()

    def _call_next(self) -> None:
        """Let the first request that waits on an event loop look again."""
        while self._awaiting:
            freed = self._awaiting.popleft()
            with suppress(RuntimeError):  # its loop has closed
                freed.get_loop().call_soon_threadsafe(_call, freed)
                return


def _call(freed: asyncio.Future[None]) -> None:
    if not freed.done():
        freed.set_result(None)


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


async def database_place() -> Place:
    """Wait on the event loop for the right to use the database; raise ``TooBusy``."""
    try:
        return await databases.take_on_loop(conf.get().api.max_connections, CONNECTION_SECONDS)
    except TooManyWaiters:
        raise TooBusy(TOO_BUSY) from None


class Database:
    """The right of one request to use the database.

    Under WSGI a thread keeps its connection, and there are few threads. Under ASGI every request has a thread of its
    own, so the number of connections must be limited, and each must be closed.
    """

    def __init__(self, request: HttpRequest) -> None:
        scope: dict[str, Any] | None = getattr(request, "scope", None)
        self._is_limited = scope is not None
        self._place: Place | None = scope.pop(PLACE, None) if scope else None
        self.enter()

    def enter(self) -> None:
        """Wait until the request may use the database; raise ``TooBusy``."""
        if self._is_limited and self._place is None:
            try:
                self._place = databases.take(conf.get().api.max_connections, within=CONNECTION_SECONDS)
            except TooManyWaiters:
                raise TooBusy(TOO_BUSY) from None

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
