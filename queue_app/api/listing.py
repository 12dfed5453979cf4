"""The query string of a list: which tasks, which of their fields, and which page of them."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from django.http import QueryDict
from rest_framework.request import Request

from queue_app.api.fields import Reader, task_id, whole_number
from queue_app.api.representation import SUMMARY_FIELDS
from queue_app.api.task_filters import NAMES, PARAMETERS_PREFIX, once, read_filter, several
from queue_app.exceptions import InvalidTaskData, near_matches
from queue_app.services.read.task_filter import TaskFilter

PAGE_SIZE: Final = 50
MAX_PAGE_SIZE: Final = 200
FORMATS: Final = ("ndjson", "csv")


@dataclass(frozen=True, slots=True)
class Listing:
    """One page of a list of tasks; no ``fields`` means all."""

    wanted: TaskFilter
    fields: Sequence[str]
    page_size: int
    before: uuid.UUID | None


@dataclass(frozen=True, slots=True)
class Counting:
    """What to count, and whether beyond the cap."""

    wanted: TaskFilter
    exact: bool


@dataclass(frozen=True, slots=True)
class Export:
    """What to export, and how."""

    wanted: TaskFilter
    fields: Sequence[str]
    format: str


def parse_listing(query: QueryDict, *, ignore: str | None) -> Listing:
    """Return what a query string asks for; ``ignore`` names the parameter that chooses the format.

    Raises every error in it at once.
    """
    reader, wanted = _read(query, ("fields", "page_size", "cursor"), ignore)
    fields = reader.optional("fields", several(_field)) or ()
    page_size = reader.optional("page_size", once(whole_number(1, MAX_PAGE_SIZE))) or PAGE_SIZE
    before = reader.optional("cursor", once(_cursor))
    reader.finish()
    return Listing(wanted, fields, page_size, before)


def parse_counting(query: QueryDict) -> Counting:
    """Return what shall be counted; raise every error in the query string at once."""
    reader, wanted = _read(query, ("exact",), None)
    exact = reader.optional("exact", once(_switch)) or False
    reader.finish()
    return Counting(wanted, exact)


def parse_export(query: QueryDict) -> Export:
    """Return what shall be exported; raise every error in the query string at once."""
    reader, wanted = _read(query, ("fields", "format"), None)
    fields = reader.optional("fields", several(_field)) or SUMMARY_FIELDS
    name = reader.optional("format", once(_format)) or FORMATS[0]
    reader.finish()
    return Export(wanted, fields, name)


def cursor(before: uuid.UUID) -> str:
    """Return the cursor of the page that begins after this task; callers treat it as opaque."""
    return before.hex


def address_with(request: Request, following: str) -> str:
    """Return the address of the page that a cursor stands for, with everything else that was asked."""
    query = request.query_params.copy()
    query["cursor"] = following
    return request.build_absolute_uri(f"{request.path}?{query.urlencode()}")


def _read(query: QueryDict, others: Sequence[str], ignore: str | None) -> tuple[Reader, TaskFilter]:
    values: dict[str, Any] = {name: query.getlist(name) for name in query if name != ignore}
    reader = Reader(values)
    known = [name for name in values if name.startswith(PARAMETERS_PREFIX)]
    reader.refuse_others((*NAMES, *others, *known), code="unknown_parameter")
    return reader, read_filter(reader, values)


def _cursor(value: str, name: str) -> uuid.UUID:
    try:
        return task_id(value, name)
    except InvalidTaskData:
        raise InvalidTaskData(
            name, "This is no cursor; take the one that the page before gave.", code="invalid_cursor"
        ) from None


def _field(value: str, name: str) -> str:
    if value not in SUMMARY_FIELDS:
        matches = near_matches(value[:80], SUMMARY_FIELDS) or SUMMARY_FIELDS
        raise InvalidTaskData(
            name, f"{value!r:.60} is not a field of a task; there is {', '.join(matches)}.", code="unknown_field"
        )
    return value


def _format(value: str, name: str) -> str:
    if value not in FORMATS:
        raise InvalidTaskData(name, f"format is {' or '.join(FORMATS)}.", code="unknown_format")
    return value


def _switch(value: str, name: str) -> bool:
    if value not in ("true", "false"):
        raise InvalidTaskData(name, f"{name} must be true or false.", code="boolean_expected")
    return value == "true"
