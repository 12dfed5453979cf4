"""Lifecycle events as server-sent events, while a caller listens."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from dataclasses import asdict
from types import MappingProxyType
from typing import Any, Final

from asgiref.sync import sync_to_async
from django.http import StreamingHttpResponse
from rest_framework.request import Request

from queue_app import conf
from queue_app.api.base import AnyFormat, ApiView
from queue_app.api.errors import AsgiRequired, TooManyWaiters
from queue_app.api.fields import Reader, task_id, text
from queue_app.api.task_filters import once, several
from queue_app.api.waiting import is_asynchronous, streams
from queue_app.core.events import Event, EventFilter, EventName, is_entry_id
from queue_app.exceptions import IndexUnavailable, InvalidTaskData
from queue_app.models.querysets import seen_as
from queue_app.services.notify import events
from queue_app.services.notify.subscribe import hub
from queue_app.sql.database import connection

HEARTBEAT_SECONDS: Final = 15.0
#: A stream ends then and is opened again by the client, so that who may not listen any more is found out.
MAX_SECONDS: Final = 600.0
RETRY_MS: Final = 3000
#: A client that is so many events behind has to open the stream again, with Last-Event-ID.
BACKLOG: Final = 2000
ID_LENGTH: Final = 40
NAMES: Final = ("queue", "task_type", "user", "task", "event", "after")


class EventView(ApiView):
    """What happens to the tasks that the caller may see."""

    content_negotiation_class = AnyFormat
    throttle_scopes = MappingProxyType({"GET": "heavy"})
    key_scopes = MappingProxyType({"GET": "view_task"})

    def get(self, request: Request) -> Any:
        """Stream events (text/event-stream) by ``queue``, ``task_type``, ``user``, ``task``, ``event``.

        Goes on after ``Last-Event-ID`` (or ``after``). Needs an ASGI server.
        """
        wanted, after = _parse(request)
        if not is_asynchronous(request._request):  # noqa: SLF001 - for its kind
            raise AsgiRequired("Event streams need an ASGI server. Wait for single tasks with ?wait=.")
        if not streams.take(conf.get().api.max_streams):
            raise TooManyWaiters("As many event streams are open here as may; try again later.")
        try:
            after = after or events.last_id()
        except BaseException:
            streams.leave()
            raise
        if not connection().in_atomic_block:
            connection().close()  # the thread of this request lives as long as the stream
        headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
        return StreamingHttpResponse(stream(wanted, after), content_type="text/event-stream", headers=headers)


def _parse(request: Request) -> tuple[EventFilter, str | None]:
    values: dict[str, Any] = {name: request.query_params.getlist(name) for name in request.query_params}
    reader = Reader(values)
    reader.refuse_others(NAMES, code="unknown_parameter")
    user = reader.optional("user", once(text))
    own = seen_as(request.user)
    wanted = EventFilter(
        queue=reader.optional("queue", once(text)),
        task_type=reader.optional("task_type", once(text)),
        user=user if own is None else own,
        task_id=reader.optional("task", once(task_id)),
        names=reader.optional("event", several(_name)) if own is None or user in (None, own) else (),
    )
    after = reader.optional("after", once(_entry))
    header = request.headers.get("Last-Event-ID")
    if header is not None:
        try:
            after = _entry(header, "Last-Event-ID")
        except InvalidTaskData as error:
            reader.note(error)
    reader.finish()
    return wanted, after


def _name(value: str, name: str) -> str:
    if value not in {event.value for event in EventName}:
        raise InvalidTaskData(name, f"{value!r:.60} is no event; see the reference of events.", code="unknown_event")
    return value


def _entry(value: str, name: str) -> str:
    if len(value) > ID_LENGTH or not is_entry_id(value):
        raise InvalidTaskData(name, f"{name} must be the id of an event, like 1700000000000-0.", code="invalid_id")
    return value


async def stream(wanted: EventFilter, after: str) -> AsyncIterator[bytes]:  # noqa: C901 - one life of a stream
    """Yield what is in the stream after an id, and then what comes; gives its place back at the end."""
    loop = asyncio.get_running_loop()
    arrived: asyncio.Queue[list[Event] | None] = asyncio.Queue(maxsize=BACKLOG)
    key = id(arrived)

    def put(found: list[Event]) -> None:
        if arrived.qsize() < BACKLOG - 1:
            arrived.put_nowait(found)
        else:
            _end(arrived)

    def tell(found: list[Event]) -> None:
        if not loop.is_closed():  # the hub's thread may be a moment late
            loop.call_soon_threadsafe(put, found)

    until = time.monotonic() + MAX_SECONDS
    try:
        await sync_to_async(hub.add)(key, tell)
        yield f"retry: {RETRY_MS}\n\n".encode()
        while True:  # what was written before the hub began to listen for us; it may be told twice, so by id
            found, last = await sync_to_async(events.read)(after, count=events.MAX_COUNT)
            if last == after:
                break
            after = last
            yield _lines(found, wanted)
        while time.monotonic() < until:
            try:
                heard = await asyncio.wait_for(arrived.get(), HEARTBEAT_SECONDS)
            except TimeoutError:
                yield b": heartbeat\n\n"
                continue
            if heard is None:
                return
            fresh = [event for event in heard if _place(event.id) > _place(after)]
            after = fresh[-1].id if fresh else after
            yield _lines(fresh, wanted)
    except IndexUnavailable:
        return  # the client comes again
    finally:
        hub.remove(key)
        streams.leave()


def _end(arrived: asyncio.Queue[list[Event] | None]) -> None:
    while not arrived.empty():
        arrived.get_nowait()
    arrived.put_nowait(None)


def _place(entry: str) -> tuple[int, int]:
    milliseconds, _, number = entry.partition("-")
    return int(milliseconds), int(number or 0)


def _lines(found: list[Event], wanted: EventFilter) -> bytes:
    """Return the events that are wanted; an id stands at the last one of its entry, which may tell of many."""
    shown = [event for event in found if wanted.matches(event)]
    parts: list[str] = []
    for position, event in enumerate(shown):
        if position + 1 == len(shown) or shown[position + 1].id != event.id:
            parts.append(f"id: {event.id}\n")
        data = {name: value for name, value in asdict(event).items() if name != "id"}
        parts.append(f"event: {event.name}\ndata: {json.dumps(data, ensure_ascii=False)}\n\n")
    return "".join(parts).encode()
