"""Parse input from outside strictly: UTF-8, JSON, times with a zone."""

import json
import math
import re
from datetime import UTC, datetime
from functools import partial
from typing import Any, Final, NoReturn

from queue_app.exceptions import InvalidTaskData, PayloadTooLarge

INTEGER_DIGITS: Final = 20
#: A day inside of what ``datetime`` can hold: sums with small differences stay within.
EARLIEST: Final = datetime(1, 1, 2, tzinfo=UTC)
LATEST: Final = datetime(9999, 12, 30, tzinfo=UTC)
_TIME: Final = re.compile(
    r"\d{4}-\d{2}-\d{2}(?P<time>[T ]\d{2}:\d{2}(:\d{2}([.,]\d{1,9})?)?(?P<zone>Z|[+-]\d{2}:?\d{2})?)?",
    re.IGNORECASE | re.ASCII,
)


def decode_text(raw: bytes, *, field: str, subject: str) -> str:
    """Decode plain UTF-8; raise ``InvalidTaskData`` for anything else."""
    if b"\x00" in raw or raw.startswith((b"\xef\xbb\xbf", b"\xff\xfe", b"\xfe\xff")):
        raise InvalidTaskData(
            field, f"{subject} must be UTF-8 without a byte order mark and without NUL bytes.", code="utf8_required"
        )
    try:
        return raw.decode()
    except UnicodeDecodeError as error:
        raise InvalidTaskData(
            field, f"{subject} is not UTF-8: byte {error.start} does not fit.", code="utf8_required"
        ) from None


def load_json(text: str, *, field: str, subject: str, max_depth: int) -> Any:
    """Parse JSON text.

    Raises ``InvalidTaskData`` for invalid JSON, for numbers that JSON readers would round or
    refuse, and for duplicate keys; ``PayloadTooLarge`` if the nesting exhausts the parser.
    """
    try:
        return json.loads(
            text,
            parse_constant=partial(_refuse_constant, field),
            parse_float=partial(_parse_float, field),
            parse_int=partial(_parse_integer, field),
            object_pairs_hook=partial(_parse_object, field),
        )
    except json.JSONDecodeError as error:
        raise InvalidTaskData(
            field,
            f"{subject} is not JSON: line {error.lineno}, column {error.colno}: {error.msg}.",
            code="invalid_json",
        ) from None
    except RecursionError:
        raise PayloadTooLarge(
            field, f"{subject} is nested deeper than {max_depth} levels.", code="too_deep", limit=max_depth
        ) from None


def timestamp(value: Any, name: str) -> datetime:
    """Parse an RFC 3339 date and time with a zone, in ASCII digits."""
    match = _TIME.fullmatch(value) if isinstance(value, str) else None
    if match is not None and match["zone"] is None:
        raise InvalidTaskData(
            name, f"{name} needs a time and a time zone, like 2030-01-31T12:00:00Z.", code="timezone_required"
        )
    try:
        if match is not None:
            moment = datetime.fromisoformat(match[0].upper())
            check_range(name, moment)
            return moment.astimezone(UTC)  # because PostgreSQL reads no offset beyond 15:59
    except InvalidTaskData:
        raise
    except ValueError:
        pass
    raise InvalidTaskData(
        name, f"{name} must be a date and time with its zone, like 2030-01-31T12:00:00Z.", code="datetime_expected"
    )


def check_range(field: str, value: datetime | None) -> None:
    """Raise ``InvalidTaskData`` for a time at the ends of the calendar, near which sums overflow."""
    if value is not None and not EARLIEST <= value <= LATEST:
        message = f"{field} must lie between {EARLIEST.date()} and {LATEST.date()} in UTC."
        raise InvalidTaskData(field, message, code="date_out_of_range")


def _refuse_constant(field: str, text: str) -> NoReturn:
    raise InvalidTaskData(field, f"{text} is not a JSON number.", code="non_finite_number")


def _parse_float(field: str, text: str) -> float:
    value = float(text)
    if math.isinf(value):
        raise InvalidTaskData(field, f"{text:.40} is beyond the numbers of JSON.", code="number_out_of_range")
    return value


def _parse_integer(field: str, text: str) -> int:
    if len(text) > INTEGER_DIGITS:
        raise InvalidTaskData(
            field, f"{text[:10]}… has {len(text)} digits; pass it as a string.", code="number_too_long"
        )
    return int(text)


def _parse_object(field: str, pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise InvalidTaskData(field, f"The key {twice!r:.80} occurs twice in one object.", code="duplicate_key")
    return result
