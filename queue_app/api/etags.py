"""Versions of rows: an answer carries one as its ETag, and an edit names it as ``If-Match``."""

from typing import Any, Final

from django.utils.http import parse_etags
from rest_framework.request import Request
from rest_framework.response import Response

from queue_app.api.errors import PreconditionRequired
from queue_app.exceptions import ChangedMeanwhile

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
