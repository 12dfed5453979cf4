"""What requests about dead letters may hold."""

import re
import uuid
from datetime import UTC, datetime, timedelta
from typing import Any, ClassVar, Final

from queue_app.api.serializers import kinds
from queue_app.api.serializers.base import Body, InBody, Query
from queue_app.api.serializers.rules import in_order
from queue_app.api.serializers.tasks import NEEDS, Selection, bad_cursor, cursor, operation_option, order, page_size
from queue_app.models.dead_letter import OPEN_NAME, STATE_NAMES
from queue_app.models.fields import TYPE_LENGTH, USER_LENGTH
from queue_app.services.read.dead_letters import DeadLetterFilter, DeathCursor

ALL: Final = "all"
CURSOR: Final = r"[0-9a-f]{46}"
EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def _place(value: Any, field: str) -> DeathCursor:
    if not re.fullmatch(CURSOR, value):
        raise bad_cursor(field)
    try:
        return DeathCursor(EPOCH + timedelta(microseconds=int(value[:14], 16)), uuid.UUID(value[14:]))
    except OverflowError:
        raise bad_cursor(field) from None


def cursor_text(place: DeathCursor) -> str:
    """Return the cursor of a place in a list of dead letters."""
    return f"{(place.died_at - EPOCH) // timedelta(microseconds=1):014x}{place.id.hex}"


class LetterFilters(Query):
    """The filters of dead letters, in the query of a list and in the body of an action on many."""

    queue = kinds.name()
    task_type = kinds.text(TYPE_LENGTH)
    exception_class = kinds.text(help_text="With or without its module.")
    reason = kinds.text()
    user = kinds.text(USER_LENGTH)
    died_after = kinds.moment(help_text="At or after.")
    died_before = kinds.moment(help_text="Before.")
    text = kinds.text(help_text=f"Text in the message. {NEEDS}")
    rules = (in_order("died"),)


class LetterListQuery(LetterFilters):
    state = kinds.word((*STATE_NAMES, ALL), "unknown_status", default=OPEN_NAME)
    page_size = page_size()
    cursor = cursor(_place)


class LetterBodyFilter(InBody, LetterFilters):
    into = DeadLetterFilter


class DiscardSelection(Selection):
    example: ClassVar[Any] = {"filter": {"reason": "crash_loop"}, "dry_run": True}
    filter = LetterBodyFilter(help_text="The same names as in the query of a list.")


class ReplaySelection(DiscardSelection):
    example: ClassVar[Any] = {"filter": {"exception_class": "TimeoutError"}, "rate": 10}
    rate = operation_option("rate")
    order = order()
    stop_after_failures = operation_option("stop_after_failures")


class Replay(Body):
    example: ClassVar[Any] = {"parameters": {"order_id": 43}, "reason": "the address was wrong"}
    parameters = kinds.payload_object(help_text="New parameters; masked values keep their old value.")
    reason = kinds.reason()
