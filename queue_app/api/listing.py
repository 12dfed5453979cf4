"""The query strings of lists, counts and exports: which rows, which of their fields, which page."""

import re
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from django.http import QueryDict
from rest_framework.request import Request

from queue_app.api.fields import Check, Reader, between, choice, integer_text, once, read_query, several, text, uuid_of
from queue_app.api.representation import SUMMARY_FIELDS
from queue_app.api.task_filters import NAMES, PARAMETERS_PREFIX, read_filter
from queue_app.core.parsing import timestamp
from queue_app.exceptions import InvalidTaskData
from queue_app.models.dead_letter import OPEN_NAME, STATE_NAMES
from queue_app.services.enqueue.validate import check_queue_name
from queue_app.services.read.dead_letters import DeadLetterFilter, DeathCursor
from queue_app.services.read.task_filter import TaskFilter

PAGE_SIZE: Final = 50
MAX_PAGE_SIZE: Final = 200
FORMATS: Final = ("ndjson", "csv")
ALL: Final = "all"
LETTER_FILTERS: Final[dict[str, Check[Any]]] = {
    "queue": lambda value, _: check_queue_name(value),
    **dict.fromkeys(("task_type", "exception_class", "reason", "user"), text),
    **dict.fromkeys(("died_after", "died_before"), timestamp),
    "text": text,
}
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_DEATH_CURSOR: Final = re.compile(r"[0-9a-f]{14}[0-9a-f]{32}", re.ASCII)


@dataclass(frozen=True, slots=True)
class Listing[W, C]:
    """One page of a list."""

    wanted: W
    page_size: int
    before: C | None


def parse_listing(query: QueryDict) -> tuple[Listing[TaskFilter, uuid.UUID], Sequence[str]]:
    """Return the page of tasks that a query string describes, and their fields; raise all its errors together."""
    with _task_reader(query, ("fields", "page_size", "cursor")) as reader:
        wanted = read_filter(reader, query)
        fields = reader.optional("fields", several(_field)) or ()
        return Listing(wanted, _page_size(reader), reader.optional("cursor", once(_task_cursor))), fields


def parse_counting(query: QueryDict) -> tuple[TaskFilter, bool]:
    """Return which tasks to count, and whether to count beyond the cap; raise all errors together."""
    with _task_reader(query, ("exact",), ignore_format=False) as reader:
        return read_filter(reader, query), reader.optional("exact", once(_switch)) or False


def parse_export(query: QueryDict) -> tuple[TaskFilter, Sequence[str], str]:
    """Return which tasks to export, with which fields, in which format; raise all errors together."""
    with _task_reader(query, ("fields", "format"), ignore_format=False) as reader:
        wanted = read_filter(reader, query)
        fields = reader.optional("fields", several(_field)) or SUMMARY_FIELDS
        return wanted, fields, reader.optional("format", once(choice(FORMATS, "unknown_format"))) or FORMATS[0]


def parse_letter_listing(query: QueryDict) -> tuple[Listing[DeadLetterFilter, DeathCursor], str]:
    """Return the page of dead letters that a query string describes, and their state; raise all its errors together."""
    with read_query(query, (*LETTER_FILTERS, "state", "page_size", "cursor")) as reader:
        wanted = DeadLetterFilter(
            **{name: reader.optional(name, once(check)) for name, check in LETTER_FILTERS.items()}
        )
        state = reader.optional("state", once(choice((*STATE_NAMES, ALL), "unknown_status"))) or OPEN_NAME
        before = reader.optional("cursor", once(_death_cursor))
        return Listing(wanted, _page_size(reader), before), state


def page_of(request: Request, results: list[dict[str, Any]], before: uuid.UUID | DeathCursor | None) -> dict[str, Any]:
    """Return a page of a list with the opaque cursor and the address of the next page."""
    if before is None:
        return {"results": results, "next_cursor": None, "next": None}
    if isinstance(before, DeathCursor):
        cursor = f"{(before.died_at - _EPOCH) // timedelta(microseconds=1):014x}{before.id.hex}"
    else:
        cursor = before.hex
    query = request.query_params.copy()
    query["cursor"] = cursor
    address = request.build_absolute_uri(f"{request.path}?{query.urlencode()}")
    return {"results": results, "next_cursor": cursor, "next": address}


def _task_reader(query: QueryDict, others: Sequence[str], *, ignore_format: bool = True) -> Reader:
    parameters = [name for name in query if name.startswith(PARAMETERS_PREFIX)]
    return read_query(query, (*NAMES, *others, *parameters), ignore_format=ignore_format)


def _page_size(reader: Reader) -> int:
    return reader.optional("page_size", once(between(1, MAX_PAGE_SIZE, integer_text))) or PAGE_SIZE


def _bad_cursor(name: str) -> InvalidTaskData:
    return InvalidTaskData(name, "This is not a cursor; use next_cursor of the previous page.", code="invalid_cursor")


def _task_cursor(value: str, name: str) -> uuid.UUID:
    try:
        return uuid_of(value, name)
    except InvalidTaskData:
        raise _bad_cursor(name) from None


def _death_cursor(value: str, name: str) -> DeathCursor:
    if not _DEATH_CURSOR.fullmatch(value):
        raise _bad_cursor(name)
    return DeathCursor(_EPOCH + timedelta(microseconds=int(value[:14], 16)), uuid.UUID(value[14:]))


_field: Final = choice(SUMMARY_FIELDS, "unknown_field")


def _switch(value: str, name: str) -> bool:
    return choice(("true", "false"), "boolean_expected")(value, name) == "true"
