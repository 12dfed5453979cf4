"""Read named values from a body or a query string, without coercion, and collect every error.

A check is a function that takes a value and its name. It returns the value or raises ``InvalidTaskData``. The reader
continues with the next field after an error, so that the answer lists all errors.
"""

import re
import uuid
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, Final, Self

from django.http import QueryDict
from rest_framework.settings import api_settings

from queue_app.api.errors import InvalidInput
from queue_app.exceptions import InvalidTaskData, near_matches
from queue_app.models.audit_entry import REASON_LENGTH
from queue_app.services.enqueue.validate import check_reason, check_text

type Check[T] = Callable[[Any, str], T]

TEXT_LENGTH: Final = 255
MAX_NAMED: Final = 20  # unknown names listed in one answer
MAX_CHOICES: Final = 20  # values of one query parameter
_UUID: Final = re.compile(r"[0-9a-f]{8}-?(?:[0-9a-f]{4}-?){3}[0-9a-f]{12}", re.IGNORECASE | re.ASCII)
_WHOLE: Final = re.compile(r"-?[0-9]{1,18}", re.ASCII)


class Reader:
    """Take fields out of a mapping; use it in a ``with`` block, whose end raises the errors."""

    def __init__(
        self, data: Mapping[str, Any], known: Iterable[str], read_only: Iterable[str] = (), code: str = "unknown_field"
    ) -> None:
        self._data = data
        self._errors: list[InvalidTaskData] = []
        known = frozenset(known)
        for name in [name for name in data if name not in known][:MAX_NAMED]:
            self._refuse_name(name, known, read_only, code)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: object, traceback: object) -> None:
        if error is None:
            self.finish()

    def required[T](self, name: str, check: Check[T], fallback: T) -> T:
        """Return a required field; ``fallback`` replaces it after an error."""
        if name not in self._data:
            self.add_error(InvalidTaskData(name, f"{name} is required.", code="required"))
            return fallback
        return self._checked(name, check, fallback)

    def optional[T](self, name: str, check: Check[T]) -> T | None:
        """Return a field that may be missing or null."""
        if self._data.get(name) is None:
            return None
        return self._checked(name, check, None)

    def add_error(self, error: InvalidTaskData) -> None:
        """Add an error."""
        self._errors.append(error)

    def finish(self) -> None:
        """Raise the errors, if there are any."""
        if self._errors:
            raise self._errors[0] if len(self._errors) == 1 else InvalidInput(self._errors)

    def _checked[T, F](self, name: str, check: Check[T], fallback: F) -> T | F:
        try:
            return check(self._data[name], name)
        except InvalidTaskData as error:
            self.add_error(error)
            return fallback

    def _refuse_name(self, name: str, known: Collection[str], read_only: Iterable[str], code: str) -> None:
        if name in read_only:
            self.add_error(
                InvalidTaskData(name, f"{name} is set by the queue, not by callers.", code="read_only_field")
            )
            return
        matches = [repr(match) for match in near_matches(name[:TEXT_LENGTH], known)]
        hint = f" Did you mean {' or '.join(matches)}?" if matches else f" Known: {', '.join(sorted(known))}."
        self.add_error(InvalidTaskData(name, f"{name!r:.80} is not known here.{hint}", code=code))


def read_query(query: QueryDict, known: Iterable[str], *, ignore_format: bool = True) -> Reader:
    """Return a reader of a query string; by default it ignores the parameter that selects the renderer."""
    ignored = api_settings.URL_FORMAT_OVERRIDE if ignore_format else None
    values = {name: query.getlist(name) for name in query if name != ignored}
    return Reader(values, known, code="unknown_parameter")


def once[T](check: Check[T]) -> Check[T]:
    """Return ``check`` for a query parameter that may occur only once."""

    def check_only(values: list[str], name: str) -> T:
        if len(values) != 1:
            raise InvalidTaskData(name, f"{name:.80} may be given only once.", code="repeated_parameter")
        return check(values[0], name)

    return check_only


def several[T](check: Check[T]) -> Check[list[T]]:
    """Return ``check`` for a query parameter that may be repeated or hold several values separated by commas."""

    def check_all(values: list[str], name: str) -> list[T]:
        parts = [part for value in values for part in value.split(",")]
        return [check(part, name) for part in list_of(MAX_CHOICES)(parts, name)]

    return check_all


def text(value: Any, name: str) -> str:
    """Accept visible text of a bounded length."""
    return check_text(value, name, TEXT_LENGTH)


def tail_of_text(length: int) -> Check[str]:
    """Return a check that keeps the last ``length`` characters of any text and escapes what a row cannot hold."""

    def check(value: Any, name: str) -> str:
        if not isinstance(value, str):
            raise InvalidTaskData(name, f"{name} must be a string.", code="string_expected")
        return value[-length:].replace("\x00", "\\x00").encode("utf-8", "backslashreplace").decode()

    return check


def reason(value: Any, _: str) -> str:
    """Accept the reason of an action; it may be empty."""
    return check_reason(value, REASON_LENGTH)


def choice(known: Collection[str], code: str) -> Check[str]:
    """Return a check for one of the ``known`` words."""

    def check(value: Any, name: str) -> str:
        if not isinstance(value, str) or value not in known:
            raise InvalidTaskData(name, f"{value!r:.60} is unknown; {name:.80} takes {', '.join(known)}.", code=code)
        return value

    return check


def json_object(value: Any, name: str) -> dict[str, Any]:
    """Accept a JSON object."""
    if not isinstance(value, dict):
        raise InvalidTaskData(name, f"{name} must be an object with string keys.", code="object_expected")
    return value


def list_of(most: int, code: str = "too_many") -> Check[list[Any]]:
    """Return a check for a list of at most ``most`` items."""

    def check(value: Any, name: str) -> list[Any]:
        if not isinstance(value, list):
            raise InvalidTaskData(name, f"{name} must be a list.", code="list_expected")
        if len(value) > most:
            message = f"{name} has {len(value)} items; the limit is {most}."
            raise InvalidTaskData(name, message, code=code, limit=most)
        return value

    return check


def uuid_of(value: Any, name: str) -> uuid.UUID:
    """Accept a UUID in its usual spelling."""
    if not isinstance(value, str) or not _UUID.fullmatch(value):
        raise InvalidTaskData(name, f"{name} must be a UUID.", code="invalid_id")
    return uuid.UUID(value)


def integer_text(value: Any, name: str) -> int:
    """Accept a whole number written in digits."""
    if not isinstance(value, str) or not _WHOLE.fullmatch(value):
        raise InvalidTaskData(name, f"{name} must be a whole number.", code="integer_expected")
    return int(value)


def integer(value: Any, name: str) -> int:
    """Accept a whole number of JSON."""
    if type(value) is not int:
        raise InvalidTaskData(name, f"{name} must be a whole number.", code="integer_expected")
    return value


def number(value: Any, name: str) -> float:
    """Accept a number of JSON."""
    if type(value) not in (int, float):
        raise InvalidTaskData(name, f"{name} must be a number.", code="number_expected")
    return float(value)


def between[T: float](low: float, high: float, check: Check[T]) -> Check[T]:
    """Return ``check`` for a number from ``low`` to ``high``."""

    def check_range(value: Any, name: str) -> T:
        found = check(value, name)
        if not low <= found <= high:
            message = f"{name} must be between {low} and {high}."
            raise InvalidTaskData(name, message, code="out_of_range", limit=int(high))
        return found

    return check_range


def switch(value: Any, name: str) -> bool:
    """Accept true or false."""
    if not isinstance(value, bool):
        raise InvalidTaskData(name, f"{name} must be true or false.", code="boolean_expected")
    return value
