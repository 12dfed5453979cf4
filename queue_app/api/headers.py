"""The headers that make repeated requests safe: ``Idempotency-Key``, and ``ETag`` with ``If-Match``."""

import hashlib
import json
from collections.abc import Callable
from functools import wraps
from typing import Any, Final

from django.utils.http import parse_etags
from rest_framework.renderers import JSONRenderer
from rest_framework.request import Request
from rest_framework.response import Response

from queue_app.api.errors import PreconditionRequired
from queue_app.core.options import KEY_LENGTH
from queue_app.exceptions import ChangedMeanwhile
from queue_app.services.control.audit import first_answer, keep_answer
from queue_app.services.enqueue.validate import check_text
from queue_app.sql.database import atomic

KEY_HEADER: Final = "Idempotency-Key"
KEY_META: Final = "HTTP_IDEMPOTENCY_KEY"  # its name in META; reading ``request.headers`` would parse every header
#: Header of an answer that was stored by an earlier request.
REPLAYED: Final = "Idempotency-Replayed"


def once(method: Callable[..., Any]) -> Any:
    """Let a method of a view answer a repeated key with its first answer; errors are not stored."""

    @wraps(method)
    def answer(view: Any, request: Request, *args: Any, **kwargs: Any) -> Any:
        if (key := request.META.get(KEY_META)) is None:
            return view.answered(request, method(view, request, *args, **kwargs))
        user, key = view.username(request), check_text(key, "idempotency_key", KEY_LENGTH)
        with atomic():
            if first := first_answer(user, key, _digest(view, request)):
                headers = {REPLAYED: "true"} | ({"Location": first.location} if first.location else {})
                return Response(json.loads(first.answer), first.status, headers=headers)
            response = view.answered(request, method(view, request, *args, **kwargs))
            text = JSONRenderer().render(response.data).decode()
            keep_answer(user, key, response.status_code, text, response.headers.get("Location", ""))
        return response

    return answer


def _digest(view: Any, request: Request) -> str:
    """Return a digest of what the request asks for, and of the scopes under which it does."""
    scopes = sorted(getattr(request.auth, "scopes", None) or ())
    asked = [request.method, request.path.rstrip("/"), view.content_of(request), scopes]
    return hashlib.sha256(json.dumps(asked, sort_keys=True).encode()).hexdigest()


# Versions of rows: an answer carries one as its ETag, and an edit names it as ``If-Match``.

IF_MATCH: Final = "If-Match"


def with_version(version: str, content: dict[str, Any]) -> Response:
    """Return an answer with the version of its row as its ETag."""
    return Response(content, headers={"ETag": f'"{version}"'})


def expected_version(request: Request, version: str) -> str | None:
    """Return the version in ``If-Match``, or ``None`` for any version (``*``).

    Raise ``PreconditionRequired`` without the header, and ``ChangedMeanwhile`` if it does not name this version.
    """
    header = request.META.get("HTTP_IF_MATCH")
    if header is None:
        raise PreconditionRequired("Send the ETag that you read as If-Match, so that you do not undo another change.")
    tags = parse_etags(header)
    if tags == ["*"]:
        return None
    if f'"{version}"' not in tags:
        raise ChangedMeanwhile("It was changed after you read it; read it again and repeat your change.")
    return version
