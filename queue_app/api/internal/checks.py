"""Checks of what remote workers send, for any field."""

from __future__ import annotations

import math
import uuid
from collections.abc import Callable
from typing import Any, Final

from queue_app.api.fields import task_id
from queue_app.exceptions import InvalidTaskData

MAX_RUNNING: Final = 1000


def integer(low: int, high: int) -> Callable[[Any, str], int]:
    """Return a check for a whole number between two bounds."""

    def check(value: Any, name: str) -> int:
        if type(value) is not int:
            raise InvalidTaskData(name, f"{name} must be a whole number.", code="integer_expected")
        if not low <= value <= high:
            raise InvalidTaskData(name, f"{name} must lie between {low} and {high}.", code="out_of_range", limit=high)
        return value

    return check


def number(low: float, high: float) -> Callable[[Any, str], float]:
    """Return a check for a number between two bounds."""

    def check(value: Any, name: str) -> float:
        if type(value) not in {int, float} or math.isnan(value):
            raise InvalidTaskData(name, f"{name} must be a number.", code="number_expected")
        if not low <= value <= high:
            raise InvalidTaskData(
                name, f"{name} must lie between {low:g} and {high:g}.", code="out_of_range", limit=int(high)
            )
        return float(value)

    return check


def list_of(most: int) -> Callable[[Any, str], list[Any]]:
    """Return a check for a list that is not too long."""

    def check(value: Any, name: str) -> list[Any]:
        if not isinstance(value, list):
            raise InvalidTaskData(name, f"{name} must be a list.", code="list_expected")
        if len(value) > most:
            raise InvalidTaskData(
                name, f"{name} has {len(value)} items; the limit is {most}.", code="too_many", limit=most
            )
        return value

    return check


def ids(value: Any, name: str) -> list[uuid.UUID]:
    """Accept the ids of what a worker runs."""
    return [task_id(item, name) for item in list_of(MAX_RUNNING)(value, name)]


def long_text(most: int) -> Callable[[Any, str], str]:
    """Return a check for text of any length and kind: the last ``most`` characters, as a row can hold them."""

    def check(value: Any, name: str) -> str:
        if not isinstance(value, str):
            raise InvalidTaskData(name, f"{name} must be a string.", code="string_expected")
        return value[-most:].replace("\x00", "\\x00").encode("utf-8", "backslashreplace").decode()

    return check
