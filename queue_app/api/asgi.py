"""Bound the bodies of requests under ASGI, where Django reads a whole body before it looks for a view.

Without it, a body of any size goes to the disk, and one that comes a byte at a time is waited for for ever.
"""

import asyncio
import json
from collections.abc import Awaitable, Callable, MutableMapping
from http import HTTPStatus
from typing import Any, Final

from django.http import Http404
from django.urls import resolve

from queue_app import conf
from queue_app.api.body import body_limit, too_large
from queue_app.api.errors import CONTENT_TYPE, BodyTooSlow
from queue_app.exceptions import PayloadTooLarge

type Message = MutableMapping[str, Any]
type Receive = Callable[[], Awaitable[Message]]
type Send = Callable[[Message], Awaitable[None]]
type Application = Callable[[Any, Any, Any], Awaitable[None]]

BODY_HEADERS: Final = {b"content-length", b"transfer-encoding"}


def bounded(application: Application) -> Application:
    """Wrap the application of ``asgi.py``: bodies sent to the API have a maximum size and time; others have none.

    Beyond them the answer is 413 ``payload_too_large`` or 408 ``body_too_slow`` (``API.BODY_SECONDS``).
    """

    async def wrapped(scope: Any, receive: Receive, send: Send) -> None:
        headers = dict(scope["headers"]) if scope["type"] == "http" else {}
        factor = _factor(scope) if headers.keys() & BODY_HEADERS else None
        if factor is None:
            await application(scope, receive, send)
            return
        most = factor * body_limit(conf.get().payload)
        try:
            declared = headers.get(b"content-length", b"")
            if declared.isdigit() and int(declared[:20]) > most:
                raise too_large(most)
            await application(scope, _Body(receive, most, conf.get().api.body_seconds), send)
        except PayloadTooLarge as error:
            await _answer(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, error, send)
        except BodyTooSlow as error:
            await _answer(HTTPStatus.REQUEST_TIMEOUT, error, send)

    return wrapped


class _Body:
    """Receives the messages of one request."""

    def __init__(self, receive: Receive, most: int, seconds: float) -> None:
        self._receive, self._most, self._seconds = receive, most, seconds
        self._until = asyncio.get_running_loop().time() + seconds
        self._size = 0
        self._is_complete = False

    async def __call__(self) -> Message:
        """Return the next message; raise ``PayloadTooLarge`` or ``BodyTooSlow``."""
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
        return message


def _factor(scope: Any) -> int | None:
    """Return the factor of the view's maximum size; ``None`` for an address that is not the API's."""
    try:
        view = resolve(scope["path"].removeprefix(scope.get("root_path", ""))).func
    except Http404:
        return None
    found: int | None = getattr(getattr(view, "cls", None), "body_factor", None)
    return found


async def _answer(status: HTTPStatus, error: PayloadTooLarge | BodyTooSlow, send: Send) -> None:
    problem = {"title": status.phrase, "status": status, "code": error.code, "detail": str(error)}
    headers = [(b"content-type", CONTENT_TYPE.encode()), (b"connection", b"close")]
    await send({"type": "http.response.start", "status": int(status), "headers": headers})
    await send({"type": "http.response.body", "body": json.dumps(problem).encode()})
