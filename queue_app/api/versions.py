"""Edits that say which version they are based on: ETag in answers, If-Match in requests."""

from __future__ import annotations

from typing import Any

from django.db import models
from django.http import HttpRequest
from django.utils.http import parse_etags
from rest_framework.response import Response

from queue_app.api.errors import PreconditionRequired
from queue_app.exceptions import ChangedMeanwhile
from queue_app.services.control.queues import version_of


def with_version(row: models.Model, shown: dict[str, Any]) -> Response:
    """Return an answer that carries the version of the row as its ETag."""
    return Response(shown, headers={"ETag": f'"{version_of(row)}"'})


def expected_version(request: HttpRequest, row: models.Model) -> str | None:
    """Return the version that ``If-Match`` asks for, ``None`` for any (``*``).

    Raises ``PreconditionRequired`` without the header, ``ChangedMeanwhile`` where none of its tags is the row's.
    """
    header = request.headers.get("If-Match")
    if header is None:
        raise PreconditionRequired("Send the ETag that you read as If-Match, so that no other change is overwritten.")
    tags = parse_etags(header)
    if tags == ["*"]:
        return None
    version = version_of(row)
    if f'"{version}"' not in tags:
        raise ChangedMeanwhile("It was changed since you read it; read it again and repeat your change.")
    return version
