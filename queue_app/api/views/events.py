"""Lifecycle events of tasks as a stream of server-sent events."""

import asyncio
import json
import time
from collections.abc import AsyncIterator
from dataclasses import asdict
from typing import Any, Final, Protocol

from asgiref.sync import sync_to_async
from django.db import DatabaseError
from django.http import StreamingHttpResponse
from rest_framework.request import Request

from queue_app.api.base import AnyFormat, ApiView, accepts
from queue_app.api.errors import AsgiRequired
from queue_app.api.serializers.control import EventQuery, entry
from queue_app.api.waiting import Place, TooBusy, TooManyWaiters, is_asynchronous, limited, stream as take_place
from queue_app.core.events import Event, EventFilter
from queue_app.exceptions import IndexUnavailable
from queue_app.models import ApiKey
from queue_app.models.querysets import restricted_to
from queue_app.services.control.api_keys import is_in_force
from queue_app.services.notify import events
from queue_app.services.notify.subscribe import hub

HEARTBEAT_SECONDS: Final = 15.0
#: Maximum age of a stream. The client then reconnects, and a caller who has lost permission is refused.
MAX_SECONDS: Final = 600.0
RETRY_MS: Final = 3000
#: Seconds between two checks of the caller's key: a revoked key ends the stream within two seconds.
KEY_SECONDS: Final = 1.0
#: Maximum batches of events queued for a slow client; after that it must reconnect with Last-Event-ID.
BACKLOG: Final = 2000


class Narrowed(Protocol):
    """Narrows a stream further than a filter of the events can."""

    def keep(self, found: list[Event]) -> list[Event]:
        """Return the wanted events."""

    def changes(self) -> bytes:
        """Return what else is to be sent now."""


class EventStream(ApiView):
    content_negotiation_class = AnyFormat

    def streamed(self, request: Request, narrowed: Narrowed | None = None) -> StreamingHttpResponse:
        """Return the stream that a request asks for."""
        wanted, after = self._wanted(request)
        if not is_asynchronous(request._request):  # noqa: SLF001 - tells ASGI from WSGI
            raise AsgiRequired("Event streams need an ASGI server. Under WSGI, wait for single tasks with ?wait=.")
        place = take_place(self.username(request))
        after = after or events.last_id()
        headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
        key = request.auth if isinstance(request.auth, ApiKey) else None
        return StreamingHttpResponse(
            stream(wanted, after, key, place, narrowed), content_type="text/event-stream", headers=headers
        )

    def _wanted(self, request: Request) -> tuple[EventFilter, str | None]:
        query = self.read_query(request)
        own, user = restricted_to(request.user), query.get("user")
        if own is not None:
            query |= {"user": own} | ({} if user in (None, own) else {"names": ()})
        header, after = request.headers.get("Last-Event-ID"), query.pop("after", None)
        return EventFilter(**query), after if header is None else entry(header, "Last-Event-ID")


class EventView(EventStream):
    @accepts("view_task", query=EventQuery, throttle="heavy", id="stream_events", answer="EventStream", problems=(501,))
    def get(self, request: Request) -> Any:
        """Stream the events of tasks as server-sent events.

        Filters by ``queue``, ``task_type``, ``user``, ``task`` and ``event``, and continues after ``Last-Event-ID`` (or
        ``after``). Needs an ASGI server.
        """
        return self.streamed(request)


async def stream(  # noqa: C901 - the whole life of a stream
    wanted: EventFilter,
    after: str,
    caller: ApiKey | None = None,
    place: Place | None = None,
    narrowed: Narrowed | None = None,
) -> AsyncIterator[bytes]:
    """Yield the stored events after an id, then new ones; give back the place at the end.

    The stream ends when the caller's key is revoked or expires, or a server cannot be asked.
    """
    loop = asyncio.get_running_loop()
    arrived: asyncio.Queue[list[Event] | None] = asyncio.Queue(maxsize=BACKLOG)
    key = id(arrived)

    def put(found: list[Event]) -> None:
        if arrived.qsize() < BACKLOG - 1:
            arrived.put_nowait(found)
        else:
            _end(arrived)

    def notify(found: list[Event]) -> None:
        if not loop.is_closed():  # the hub's thread may call after the stream has ended
            loop.call_soon_threadsafe(put, found)

    until = time.monotonic() + MAX_SECONDS
    hub.add(key, notify)
    try:
        await sync_to_async(hub.wait_until_ready)()
        yield f"retry: {RETRY_MS}\n\n".encode()
        while True:  # events from before hub.add; some arrive again through the hub and are dropped by id below
            found, last = await sync_to_async(events.read)(after, count=events.MAX_COUNT)
            if last == after:
                break
            after = last
            yield await _chosen(found, wanted, narrowed)
        checked = sent = time.monotonic()
        while (now := time.monotonic()) < until:
            if narrowed is not None:
                yield await sync_to_async(narrowed.changes)()
            if caller is not None and now - checked >= KEY_SECONDS:
                if not await sync_to_async(_is_in_force)(caller):
                    return
                checked = now
            try:
                heard = await asyncio.wait_for(arrived.get(), min(HEARTBEAT_SECONDS, KEY_SECONDS))
            except TimeoutError:
                if time.monotonic() - sent >= HEARTBEAT_SECONDS:
                    yield b": heartbeat\n\n"
                    sent = time.monotonic()
                continue
            if heard is None:
                return
            fresh = [event for event in heard if _place(event.id) > _place(after)]
            after = fresh[-1].id if fresh else after
            yield await _chosen(fresh, wanted, narrowed)
            sent = time.monotonic()
    except (IndexUnavailable, TooBusy, DatabaseError):
        return  # the client reconnects
    finally:
        hub.remove(key)
        if place is not None:
            place.leave()


async def _chosen(found: list[Event], wanted: EventFilter, narrowed: Narrowed | None) -> bytes:
    matching = [event for event in found if wanted.matches(event)]
    if narrowed is not None and matching:
        matching = await sync_to_async(narrowed.keep)(matching)
    return _lines(matching)


def _is_in_force(key: ApiKey) -> bool:
    """Ask without keeping a connection: streams of one key in one process share the answer."""
    try:
        with limited():
            return is_in_force(key, KEY_SECONDS / 2)
    except TooManyWaiters:
        return True  # asked again in a second


def _end(arrived: asyncio.Queue[list[Event] | None]) -> None:
    while not arrived.empty():
        arrived.get_nowait()
    arrived.put_nowait(None)


def _place(entry: str) -> tuple[int, int]:
    milliseconds, _, number = entry.partition("-")
    return int(milliseconds), int(number or 0)


def _lines(matching: list[Event]) -> bytes:
    """Return events as text; of the events that share an entry, only the last one carries its id."""
    parts: list[str] = []
    for position, event in enumerate(matching):
        if position + 1 == len(matching) or matching[position + 1].id != event.id:
            parts.append(f"id: {event.id}\n")
        data = {name: value for name, value in asdict(event).items() if name != "id"}
        parts.append(f"event: {event.name}\ndata: {json.dumps(data, ensure_ascii=False)}\n\n")
    return "".join(parts).encode()
