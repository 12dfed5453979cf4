"""Pages of lists: one cursor, one size, and the address of the next page, for every list."""

import uuid
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any

from django.db.models import Model, QuerySet
from rest_framework.request import Request

from queue_app.api.serializers.dead_letters import cursor_text
from queue_app.services.read.dead_letters import DeathCursor


def paged[R: Model](
    request: Request,
    rows: QuerySet[R],
    query: dict[str, Any],
    by: str,
    represent: Callable[[Sequence[R]], list[dict[str, Any]]],
) -> dict[str, Any]:
    """Return a page of ``rows`` in the order of ``by``, a unique column, with a minus for a descending order.

    A row that is stored while a client walks through the pages moves no other row to another page.
    """
    column, size = by.removeprefix("-"), query["page_size"]
    if "cursor" in query:
        rows = rows.filter(**{f"{column}__{'gt' if column == by else 'lt'}": query["cursor"]})
    found = list(rows.order_by(by)[: size + 1])
    last = getattr(found[size - 1], column) if len(found) > size else None
    return page_of(request, represent(found[:size]), last)


def each[R](represent: Callable[[R], dict[str, Any]]) -> Callable[[Sequence[R]], list[dict[str, Any]]]:
    """Return a function that represents each row by itself."""
    return lambda rows: [represent(row) for row in rows]


def page_of(request: Request, results: list[dict[str, Any]], before: Any) -> dict[str, Any]:
    """Return a page of a list with the opaque cursor and the address of the next page; ``None`` ends the list."""
    if before is None:
        return {"results": results, "next_cursor": None, "next": None}
    query = request.query_params.copy()
    query.pop("before", None)  # the former name of the cursor
    query["cursor"] = cursor = _text(before)
    address = request.build_absolute_uri(f"{request.path}?{query.urlencode()}")
    return {"results": results, "next_cursor": cursor, "next": address}


def _text(place: Any) -> str:
    if isinstance(place, DeathCursor):
        return cursor_text(place)
    if isinstance(place, uuid.UUID):
        return place.hex
    return place.isoformat().replace("+00:00", "Z") if isinstance(place, datetime) else str(place)
