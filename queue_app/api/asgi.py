"""Bound what requests take under ASGI, before Django sees them.

Django reads a whole body before it looks for a view: a body of any size goes to the disk, and Django waits for ever for
one that comes a byte at a time. Then it starts a thread for each request, so a burst starts hundreds that delay each
other.
"""

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping, Sequence
from http import HTTPStatus
from typing import Any, Final

from django.http import Http404
from django.urls import resolve

from queue_app import conf
from queue_app.api.base import ApiView, PlainJSON
from queue_app.api.body import body_limit, too_large
from queue_app.api.errors import CONTENT_TYPE, RETRY_AFTER_SECONDS, BodyTooSlow
from queue_app.api.views.health import ALIVE, LiveView
from queue_app.api.waiting import PLACE, Place, TooBusy, database_place
from queue_app.exceptions import PayloadTooLarge, TaskQueueError

type Message = MutableMapping[str, Any]
type Receive = Callable[[], Awaitable[Message]]
type Send = Callable[[Message], Awaitable[None]]
type Application = Callable[[Any, Any, Any], Awaitable[None]]

READS: Final = {"GET", "HEAD"}


def bounded(application: Application, others: int | None = None) -> Application:
    """Wrap the application of ``asgi.py``, to bound requests to the API.

    Bodies have a maximum size and time, else the answer is 413 ``payload_too_large`` or 408 ``body_too_slow``
    (``API.BODY_SECONDS``). The same holds for other requests if ``others`` is their maximum size in bytes: a login page
    takes bodies of strangers too. At most ``API.MAX_CONNECTIONS`` requests that use the database run at once; further
    ones wait on the event loop, up to 10 s (503 ``too_busy``). ``/healthz`` is answered on the event loop, without a
    thread.
    """

    async def wrapped(scope: Any, receive: Receive, send: Send) -> None:
        view = _view(scope) if scope["type"] == "http" else None
        most = others if view is None else view.body_factor * body_limit(conf.get().payload)
        if most is None or scope["type"] != "http":
            await application(scope, receive, send)
            return
        if view is LiveView and scope["method"] in READS:
            await _send(HTTPStatus.OK, ALIVE, PlainJSON.media_type, send)
            return
        limited = scope if view is not None and view.uses_database else None
        body = _Body(receive, most, conf.get().api.body_seconds, limited)
        try:
            declared = dict(scope["headers"]).get(b"content-length", b"")
            if declared.isdigit() and int(declared[:20]) > most:
                raise too_large(most)
            await application(scope, body, send)
        except PayloadTooLarge as error:
            await _answer(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, error, send)
        except BodyTooSlow as error:
            await _answer(HTTPStatus.REQUEST_TIMEOUT, error, send)
        except TooBusy as error:
            await _answer(HTTPStatus.SERVICE_UNAVAILABLE, error, send)
        finally:
            body.leave()

    return wrapped


class _Body:
    """Receives the messages of one request, and then waits until it may use the database of its scope."""

    def __init__(self, receive: Receive, most: int, seconds: float, scope: Any) -> None:
        self._receive, self._most, self._seconds, self._scope = receive, most, seconds, scope
        self._place: Place | None = None
        self._until = asyncio.get_running_loop().time() + seconds
        self._size = 0
        self._is_complete = False

    async def __call__(self) -> Message:
        """Return the next message; raise ``PayloadTooLarge``, ``BodyTooSlow`` or ``TooBusy``."""
        if self._is_complete:  # only the end of the connection can follow
            return await self._receive()
        try:
            async with asyncio.timeout_at(self._until):
                message = await self._receive()
        except TimeoutError:
            raise BodyTooSlow(f"The body did not arrive within {self._seconds:g} seconds.") from None
        self._size += len(message.get("body", b""))
        if self._size > self._most:
            raise too_large(self._most)
        self._is_complete = not message.get("more_body", False)
        if self._is_complete and self._scope is not None:
            self._scope[PLACE] = self._place = await database_place()
        return message

    def leave(self) -> None:
        """Give the place back, if the view did not come to it."""
        if self._place is not None:
            self._place.leave()


def _view(scope: Any) -> type[ApiView] | None:
    """Return the view of an address of the API; ``None`` for another address."""
    try:
        view = resolve(scope["path"].removeprefix(scope.get("root_path", ""))).func
    except Http404:
        return None
    found = getattr(view, "cls", None)
    return found if isinstance(found, type) and issubclass(found, ApiView) else None


async def _answer(status: HTTPStatus, error: TaskQueueError, send: Send) -> None:
    problem = {"title": status.phrase, "status": status, "code": error.code, "detail": str(error)}
    headers = [(b"connection", b"close")]
    if status == HTTPStatus.SERVICE_UNAVAILABLE:
        headers.append((b"retry-after", str(RETRY_AFTER_SECONDS).encode()))
    await _send(status, problem, CONTENT_TYPE, send, headers)


async def _send(
    status: HTTPStatus, content: Any, media_type: str, send: Send, headers: Sequence[tuple[bytes, bytes]] = ()
) -> None:
    body = PlainJSON().render(content)
    headers = [(b"content-type", media_type.encode()), (b"content-length", str(len(body)).encode()), *headers]
    await send({"type": "http.response.start", "status": int(status), "headers": headers})
    await send({"type": "http.response.body", "body": body})
