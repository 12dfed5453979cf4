"""Pages of lists, with the cursor and the address of the next page."""

import uuid
from typing import Any

from django.db.models import Model, QuerySet
from rest_framework.request import Request

from queue_app.api.serializers.dead_letters import cursor_text
from queue_app.services.read.dead_letters import DeathCursor


def first_page[R: Model](rows: QuerySet[R], size: int) -> tuple[list[R], bool]:
    """Return the first rows, and whether there are more."""
    found = list(rows[: size + 1])
    return found[:size], len(found) > size


def page_of(request: Request, results: list[dict[str, Any]], before: uuid.UUID | DeathCursor | None) -> dict[str, Any]:
    """Return a page of a list with the opaque cursor and the address of the next page."""
    if before is None:
        return {"results": results, "next_cursor": None, "next": None}
    cursor = cursor_text(before) if isinstance(before, DeathCursor) else before.hex
    query = request.query_params.copy()
    query["cursor"] = cursor
    address = request.build_absolute_uri(f"{request.path}?{query.urlencode()}")
    return {"results": results, "next_cursor": cursor, "next": address}
