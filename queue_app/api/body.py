"""Read a JSON object from a request: bounded before it is parsed, and strict about what JSON is.

The framework's own parser treats a chunked body as empty, takes the last of two equal keys
and lets NaN pass; so bodies are read here.
"""

from __future__ import annotations

from typing import Any, Final, NoReturn

from django.http import HttpRequest
from rest_framework.exceptions import UnsupportedMediaType

from queue_app import conf
from queue_app.core.parsing import decode_text, load_json
from queue_app.core.payload import BESIDE_BYTES
from queue_app.exceptions import InvalidTaskData, PayloadTooLarge

FIELD: Final = "body"
CHUNK: Final = 64 * 1024
MEDIA_TYPE_LENGTH: Final = 256


def body_limit() -> int:
    """Return how many bytes a body may have."""
    return conf.get().payload.wire_bytes + BESIDE_BYTES


def check_headers(request: HttpRequest, factor: int = 1) -> None:
    """Refuse a body by what its headers say: too large, compressed, or not JSON.

    To be called before anything else may read the body: Django's check of the session's
    CSRF token parses forms. ``factor`` is how many times as large as usual it may be.
    """
    length = _declared_length(request)
    if length > factor * body_limit():
        _refuse_size(factor)
    if length or "HTTP_TRANSFER_ENCODING" in request.META:
        _check_media_type(request)


def read_object(request: HttpRequest, *, required: bool = True, factor: int = 1) -> dict[str, Any]:
    """Return the JSON object in the body; without ``required`` an empty body stands for ``{}``.

    Raises ``InvalidTaskData`` for what is not a JSON object in UTF-8, ``PayloadTooLarge``
    past the limit and ``UnsupportedMediaType`` for anything but JSON.
    """
    raw = _read(request, factor)
    if not raw.strip():
        if required:
            raise InvalidTaskData(FIELD, "Send a JSON object.", code="body_required")
        return {}
    _check_media_type(request)
    text = decode_text(raw, field=FIELD, subject="The body")
    value = load_json(text, field=FIELD, subject="The body", max_depth=conf.get().payload.max_depth)
    if not isinstance(value, dict):
        raise InvalidTaskData(FIELD, "The body must be a JSON object.", code="object_expected")
    return value


def _declared_length(request: HttpRequest) -> int:
    text = request.META.get("CONTENT_LENGTH") or "0"
    return int(text[:20]) if text.isascii() and text.isdigit() else 0


def _check_media_type(request: HttpRequest) -> None:
    content_type = request.META.get("CONTENT_TYPE", "")
    media_type = content_type[:MEDIA_TYPE_LENGTH].split(";")[0].strip().lower()
    encoding = request.META.get("HTTP_CONTENT_ENCODING", "identity").strip().lower()
    if media_type != "application/json" or encoding != "identity":
        raise UnsupportedMediaType(media_type)


def _read(request: HttpRequest, factor: int) -> bytes:
    """Read at most as many bytes as a body may have, however the server delivers them."""
    limit = factor * body_limit()
    stream: Any = request
    chunked = not request.META.get("CONTENT_LENGTH") and "HTTP_TRANSFER_ENCODING" in request.META
    if chunked and request.META.get("wsgi.input_terminated"):
        stream = request.META["wsgi.input"]  # Django reads nothing there without a length
    parts: list[bytes] = []
    size = 0
    while chunk := stream.read(min(CHUNK, limit + 1 - size)):
        parts.append(chunk)
        size += len(chunk)
        if size > limit:
            _refuse_size(factor)
    return b"".join(parts)


def _refuse_size(factor: int) -> NoReturn:
    limit = factor * body_limit()
    raise PayloadTooLarge(FIELD, f"The body is larger than {limit} bytes.", limit=limit)
