"""The query string of a list: which tasks, and which page of them."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from django.http import QueryDict
from rest_framework.request import Request

from queue_app.api.fields import Reader, task_id, text, whole_number
from queue_app.core.priorities import Band, parse_band
from queue_app.core.states import PENDING_NAME, Status
from queue_app.exceptions import InvalidTaskData
from queue_app.services.inspect import TaskFilter
from queue_app.services.validate import check_queue_name

PAGE_SIZE: Final = 50
MAX_PAGE_SIZE: Final = 200
MAX_CHOICES: Final = 20
STATUS_NAMES: Final = (PENDING_NAME, *(status.value for status in Status))
#: May be given more than once, or with commas: any of them.
SEVERAL: Final = ("status", "priority")
PARAMETERS: Final = (*SEVERAL, "queue", "task_type", "user", "worker", "page_size", "cursor")


@dataclass(frozen=True, slots=True)
class Listing:
    """One page of a list of tasks."""

    wanted: TaskFilter
    page_size: int
    before: uuid.UUID | None


def parse_listing(query: QueryDict, *, ignore: str | None) -> Listing:
    """Return what a query string asks for; ``ignore`` names the parameter that chooses the format.

    Raises every error in it at once.
    """
    values: dict[str, Any] = {name: query.getlist(name) for name in query if name != ignore}
    reader = Reader(values)
    reader.refuse_others(PARAMETERS, code="unknown_parameter")
    wanted = TaskFilter(
        statuses=reader.optional("status", _several(_status)) or (),
        bands=reader.optional("priority", _several(_band)) or (),
        queue=reader.optional("queue", once(lambda value, _: check_queue_name(value))),
        task_type=reader.optional("task_type", once(text)),
        user=reader.optional("user", once(text)),
        worker_id=reader.optional("worker", once(task_id)),
    )
    page_size = reader.optional("page_size", once(whole_number(1, MAX_PAGE_SIZE))) or PAGE_SIZE
    before = reader.optional("cursor", once(_cursor))
    reader.finish()
    return Listing(wanted, page_size, before)


def cursor(before: uuid.UUID) -> str:
    """Return the cursor of the page that begins after this task; callers treat it as opaque."""
    return before.hex


def address_with(request: Request, following: str) -> str:
    """Return the address of the page that a cursor stands for, with everything else that was asked."""
    query = request.query_params.copy()
    query["cursor"] = following
    return request.build_absolute_uri(f"{request.path}?{query.urlencode()}")


def _cursor(value: str, name: str) -> uuid.UUID:
    try:
        return task_id(value, name)
    except InvalidTaskData:
        raise InvalidTaskData(
            name, "This is no cursor; take the one that the page before gave.", code="invalid_cursor"
        ) from None


def _status(value: str, name: str) -> str:
    if value not in STATUS_NAMES:
        raise InvalidTaskData(
            name, f"{value!r:.60} is not a status; use {', '.join(STATUS_NAMES)}.", code="unknown_status"
        )
    return value


def _band(value: str, name: str) -> Band:
    return parse_band(text(value, name), field=name)


def once[T](check: Callable[[str, str], T]) -> Callable[[Any, str], T]:
    """Return ``check`` for a parameter that may be given once."""

    def check_only(values: list[str], name: str) -> T:
        if len(values) != 1:
            raise InvalidTaskData(name, f"{name} may be given once.", code="repeated_parameter")
        return check(values[0], name)

    return check_only


def _several[T](check: Callable[[str, str], T]) -> Callable[[Any, str], list[T]]:
    def several(values: list[str], name: str) -> list[T]:
        parts = [part for value in values for part in value.split(",")]
        if len(parts) > MAX_CHOICES:
            raise InvalidTaskData(
                name, f"{name} takes at most {MAX_CHOICES} values.", code="too_many", limit=MAX_CHOICES
            )
        return [check(part, name) for part in parts]

    return several
