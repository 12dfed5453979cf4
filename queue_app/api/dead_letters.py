"""What requests about dead letters ask for: a page of them, or many to replay or discard."""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from django.http import QueryDict

from queue_app.api.fields import Reader, switch, task_id, text, whole_number
from queue_app.api.listing import MAX_PAGE_SIZE, PAGE_SIZE
from queue_app.api.task_filters import once
from queue_app.core.parsing import timestamp
from queue_app.exceptions import InvalidTaskData
from queue_app.models.audit_entry import REASON_LENGTH
from queue_app.models.dead_letter import OPEN_NAME, STATE_NAMES
from queue_app.services.enqueue.validate import check_queue_name, check_reason
from queue_app.services.operations.request import Options, ReplayOptions, check_options
from queue_app.services.read.dead_letters import DeadLetterFilter, DeathCursor

MAX_IDS: Final = 1000
ALL: Final = "all"
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_CURSOR: Final = re.compile(r"[0-9a-f]{14}[0-9a-f]{32}", re.ASCII)


def _queue(value: Any, _: str) -> str:
    return check_queue_name(value)


FILTERS: Final[dict[str, Callable[[Any, str], Any]]] = {
    "queue": _queue,
    "task_type": text,
    "exception_class": text,
    "reason": text,
    "user": text,
    "died_after": timestamp,
    "died_before": timestamp,
    "text": text,
}


@dataclass(frozen=True, slots=True)
class DeadLetterListing:
    """One page of a list of dead letters; ``state`` is ``None`` for all of them."""

    wanted: DeadLetterFilter
    state: str | None
    page_size: int
    before: DeathCursor | None


@dataclass(frozen=True, slots=True)
class Selection:
    """Many dead letters, and what shall be done with them."""

    wanted: DeadLetterFilter
    options: ReplayOptions
    reason: str
    dry_run: bool


def parse_listing(query: QueryDict, *, ignore: str | None) -> DeadLetterListing:
    """Return what a query string asks for; raise every error in it at once."""
    values: dict[str, Any] = {name: query.getlist(name) for name in query if name != ignore}
    reader = Reader(values)
    reader.refuse_others((*FILTERS, "state", "page_size", "cursor"), code="unknown_parameter")
    wanted = DeadLetterFilter(**{name: reader.optional(name, once(check)) for name, check in FILTERS.items()})
    state = reader.optional("state", once(_state)) or OPEN_NAME
    page_size = reader.optional("page_size", once(whole_number(1, MAX_PAGE_SIZE))) or PAGE_SIZE
    before = reader.optional("cursor", once(_cursor))
    reader.finish()
    return DeadLetterListing(wanted, None if state == ALL else state, page_size, before)


def parse_selection(data: Mapping[str, Any], *, replay: bool) -> Selection:
    """Return what the body of a replay or discard of many asks for; raise every error in it."""
    given = data.get("filter")
    inner = {f"filter.{name}": value for name, value in given.items()} if isinstance(given, dict) else {}
    reader = Reader({name: value for name, value in data.items() if name != "filter"} | inner)
    own = ("rate", "stop_after_failures") if replay else ()
    reader.refuse_others(("ids", "dry_run", "limit", "reason", *own, *(f"filter.{name}" for name in FILTERS)))
    wanted = DeadLetterFilter(
        ids=reader.optional("ids", ids_of),
        **{name: reader.optional(f"filter.{name}", check) for name, check in FILTERS.items()},
    )
    if given is not None and not isinstance(given, dict):
        reader.note(InvalidTaskData("filter", "filter must be an object.", code="object_expected"))
    elif data.get("ids") is not None and given is not None:
        reader.note(InvalidTaskData("filter", "Give ids or filter, not both.", code="conflicting_fields"))
    elif data.get("ids") is None and given is None:
        reader.note(InvalidTaskData("ids", "Give ids, or a filter; an empty filter means all.", code="required"))
    dry_run = reader.optional("dry_run", switch) or False
    reason = reader.optional("reason", reason_text) or ""
    options = options_of(reader, data, ReplayOptions())
    reader.finish()
    return Selection(wanted, options, reason, dry_run)


def cursor(before: DeathCursor) -> str:
    """Return the cursor of the page that begins after this place; callers treat it as opaque."""
    return f"{(before.died_at - _EPOCH) // timedelta(microseconds=1):014x}{before.id.hex}"


def reason_text(value: Any, _: str) -> str:
    """Accept the reason of an action."""
    return check_reason(value, REASON_LENGTH)


def _cursor(value: str, name: str) -> DeathCursor:
    if not _CURSOR.fullmatch(value):
        raise InvalidTaskData(name, "This is no cursor; take the one that the page before gave.", code="invalid_cursor")
    return DeathCursor(_EPOCH + timedelta(microseconds=int(value[:14], 16)), uuid.UUID(value[14:]))


def _state(value: str, name: str) -> str:
    if value not in (*STATE_NAMES, ALL):
        raise InvalidTaskData(
            name, f"{value!r:.60} is not a state; use {', '.join(STATE_NAMES)} or {ALL}.", code="unknown_status"
        )
    return value


def ids_of(value: Any, name: str) -> list[uuid.UUID]:
    """Accept a bounded list of ids."""
    if not isinstance(value, list):
        raise InvalidTaskData(name, f"{name} must be a list of ids.", code="list_expected")
    if len(value) > MAX_IDS:
        raise InvalidTaskData(
            name, f"{name} takes at most {MAX_IDS} values; use a filter.", code="too_many", limit=MAX_IDS
        )
    return [task_id(item, f"{name}[{position}]") for position, item in enumerate(value)]


def options_of[O: Options](reader: Reader, data: Mapping[str, Any], options: O) -> O:
    """Return ``options`` with the pace and the limit that the body gives."""
    given = {name: data[name] for name in ("rate", "limit", "stop_after_failures") if data.get(name) is not None}
    try:
        check_options(options := replace(options, **given))
    except InvalidTaskData as error:
        reader.note(error)
    return options
