"""Read named values from a body or a query string, typed and without coercion, noting every error.

A check is a function that returns the value or raises ``InvalidTaskData``. The reader runs
it, and goes on with the next field after an error, so that a caller learns of all at once.
"""

from __future__ import annotations

import re
import unicodedata
import uuid
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from queue_app.api.errors import InvalidInput
from queue_app.exceptions import InvalidTaskData, near_matches

TEXT_LENGTH: Final = 255
MAX_NAMED: Final = 20  # unknown names that one answer lists
_UUID: Final = re.compile(r"[0-9a-f]{8}-?(?:[0-9a-f]{4}-?){3}[0-9a-f]{12}", re.IGNORECASE | re.ASCII)
_WHOLE: Final = re.compile(r"-?[0-9]{1,18}", re.ASCII)


class Reader:
    """Takes fields out of a mapping; ``finish`` raises what was wrong with them."""

    def __init__(self, data: Mapping[str, Any]) -> None:
        self._data = data
        self._errors: list[InvalidTaskData] = []

    def refuse_others(
        self, known: Iterable[str], read_only: Iterable[str] = (), *, code: str = "unknown_field"
    ) -> None:
        """Note the names that are not among ``known``."""
        known, read_only = frozenset(known), frozenset(read_only)
        for name in [name for name in self._data if name not in known][:MAX_NAMED]:
            if name in read_only:
                error = InvalidTaskData(name, f"{name} is set by the queue, not by callers.", code="read_only_field")
            else:
                hint = [repr(match) for match in near_matches(name[:TEXT_LENGTH], known)]
                suggestion = f" Did you mean {' or '.join(hint)}?" if hint else f" Known: {', '.join(sorted(known))}."
                error = InvalidTaskData(name, f"{name!r:.80} is not known here.{suggestion}", code=code)
            self._errors.append(error)

    def required[T](self, name: str, check: Callable[[Any, str], T], fallback: T) -> T:
        """Return a field that must be there; ``fallback`` stands in for it after an error."""
        if name not in self._data:
            self.note(InvalidTaskData(name, f"{name} is required.", code="required"))
            return fallback
        return self._checked(name, check, fallback)

    def optional[T](self, name: str, check: Callable[[Any, str], T]) -> T | None:
        """Return a field that may be missing or null."""
        if self._data.get(name) is None:
            return None
        return self._checked(name, check, None)

    def note(self, error: InvalidTaskData) -> None:
        """Add an error."""
        self._errors.append(error)

    def finish(self) -> None:
        """Raise what was wrong, if anything was."""
        if len(self._errors) == 1:
            raise self._errors[0]
        if self._errors:
            raise InvalidInput(self._errors)

    def _checked[T, F](self, name: str, check: Callable[[Any, str], T], fallback: F) -> T | F:
        try:
            return check(self._data[name], name)
        except InvalidTaskData as error:
            self.note(error)
            return fallback


def text(value: Any, name: str) -> str:
    """Accept visible text of a bounded length."""
    if not isinstance(value, str):
        raise InvalidTaskData(name, f"{name} must be a string.", code="string_expected")
    if not value:
        raise InvalidTaskData(name, f"{name} must not be empty.", code="blank")
    if len(value) > TEXT_LENGTH:
        raise InvalidTaskData(
            name, f"{name} has {len(value)} characters; the limit is {TEXT_LENGTH}.", limit=TEXT_LENGTH
        )
    if not value.isascii() or not value.isprintable():
        _refuse_invisible(value, name)
    return value


def _refuse_invisible(value: str, name: str) -> None:
    if any(unicodedata.category(character)[0] == "C" for character in value):
        raise InvalidTaskData(name, f"{name} contains control or invisible characters.", code="invalid_characters")


def json_object(value: Any, name: str) -> dict[str, Any]:
    """Accept a JSON object."""
    if not isinstance(value, dict):
        raise InvalidTaskData(name, f"{name} must be an object with string keys.", code="object_expected")
    return value


def task_id(value: Any, name: str) -> uuid.UUID:
    """Accept a UUID in its usual spelling."""
    if not isinstance(value, str) or not _UUID.fullmatch(value):
        raise InvalidTaskData(name, f"{name} must be a UUID.", code="invalid_id")
    return uuid.UUID(value)


def whole_number(low: int, high: int) -> Callable[[Any, str], int]:
    """Return a check for a whole number written as text, between two bounds."""

    def check(value: Any, name: str) -> int:
        if not isinstance(value, str) or not _WHOLE.fullmatch(value):
            raise InvalidTaskData(name, f"{name} must be a whole number.", code="integer_expected")
        if not low <= int(value) <= high:
            raise InvalidTaskData(name, f"{name} must lie between {low} and {high}.", code="out_of_range", limit=high)
        return int(value)

    return check


def integer(value: Any, name: str) -> int:
    """Accept a whole number of JSON; its bounds are for others to check."""
    if type(value) is not int:
        raise InvalidTaskData(name, f"{name} must be a whole number.", code="integer_expected")
    return value


def number(value: Any, name: str) -> float:
    """Accept a number of JSON; its bounds are for others to check."""
    if type(value) not in (int, float):
        raise InvalidTaskData(name, f"{name} must be a number.", code="number_expected")
    return float(value)


def switch(value: Any, name: str) -> bool:
    """Accept true or false."""
    if not isinstance(value, bool):
        raise InvalidTaskData(name, f"{name} must be true or false.", code="boolean_expected")
    return value
