"""Read a JSON object from a request: limit its size before parsing it, and parse strictly.

The parser of the framework treats a chunked body as empty, keeps the last of two equal keys and accepts NaN.
"""

from functools import cache
from typing import Any, Final

from django.http import HttpRequest
from rest_framework.exceptions import UnsupportedMediaType

from queue_app import conf
from queue_app.core.parsing import decode_text, load_json
from queue_app.core.payload import BESIDE_BYTES, PayloadLimits
from queue_app.exceptions import InvalidTaskData, PayloadTooLarge

FIELD: Final = "body"
SUBJECT: Final = "The body"
CHUNK: Final = 64 * 1024
MEDIA_TYPE_LENGTH: Final = 256


@cache
def body_limit(limits: PayloadLimits) -> int:
    """Return the usual maximum size of a body in bytes."""
    return limits.wire_bytes + BESIDE_BYTES


def too_large(most: int) -> PayloadTooLarge:
    """Return the error of a body of more than ``most`` bytes."""
    return PayloadTooLarge(FIELD, f"The body is larger than {most} bytes.", limit=most)


class RequestBody:
    """The body of a request; it may be ``factor`` times as large as usual."""

    def __init__(self, request: HttpRequest, factor: int) -> None:
        limits = conf.get().payload
        self._request = request
        self._max_bytes = factor * body_limit(limits)
        self._max_depth = limits.max_depth
        self._raw: bytes | None = None  # a stream can be read only once

    def check_headers(self) -> None:
        """Refuse a body whose headers say that it is too large, compressed, or not JSON.

        Call it before anything else reads the body: Django's check of the session's CSRF token parses forms.
        """
        declared = self._request.META.get("CONTENT_LENGTH") or "0"
        length = int(declared[:20]) if declared.isascii() and declared.isdigit() else 0
        if length > self._max_bytes:
            raise too_large(self._max_bytes)
        if length or "HTTP_TRANSFER_ENCODING" in self._request.META:
            self._check_media_type()

    def read_object(self, *, required: bool = True) -> dict[str, Any]:
        """Return the JSON object in the body; unless ``required``, an empty body means ``{}``.

        Raise ``InvalidTaskData`` for anything but a JSON object in UTF-8, ``PayloadTooLarge`` beyond the limit, and
        ``UnsupportedMediaType`` for another media type.
        """
        raw = self._read()
        if not raw.strip():
            if required:
                raise InvalidTaskData(FIELD, "Send a JSON object.", code="body_required")
            return {}
        self._check_media_type()
        text = decode_text(raw, field=FIELD, subject=SUBJECT)
        value = load_json(text, field=FIELD, subject=SUBJECT, max_depth=self._max_depth)
        if not isinstance(value, dict):
            raise InvalidTaskData(FIELD, "The body must be a JSON object.", code="object_expected")
        return value

    def _check_media_type(self) -> None:
        meta = self._request.META
        media_type = meta.get("CONTENT_TYPE", "")[:MEDIA_TYPE_LENGTH].split(";")[0].strip().lower()
        encoding = meta.get("HTTP_CONTENT_ENCODING", "identity").strip().lower()
        if media_type != "application/json" or encoding != "identity":
            raise UnsupportedMediaType(media_type)

    def _read(self) -> bytes:
        """Read at most the allowed number of bytes, however the server delivers them."""
        if self._raw is not None:
            return self._raw
        meta = self._request.META
        stream: Any = self._request
        chunked = not meta.get("CONTENT_LENGTH") and "HTTP_TRANSFER_ENCODING" in meta
        if chunked and meta.get("wsgi.input_terminated"):
            stream = meta["wsgi.input"]  # without a length Django reads nothing from it
        parts: list[bytes] = []
        size = 0
        while chunk := stream.read(min(CHUNK, self._max_bytes + 1 - size)):
            parts.append(chunk)
            size += len(chunk)
            if size > self._max_bytes:
                raise too_large(self._max_bytes)
        self._raw = b"".join(parts)
        return self._raw
