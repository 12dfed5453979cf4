"""Lengths, bounds and choices of columns that several tables share."""

from collections.abc import Iterable
from typing import Final

from queue_app.core.priorities import Band
from queue_app.core.states import Status


def choices_of(values: Iterable[str]) -> list[tuple[str, str]]:
    """Return the choices of a column for these values, with words for people."""
    return [(str(value), str(value).replace("_", " ")) for value in values]


STATUS_CHOICES: Final = choices_of(Status)
PRIORITY_CHOICES: Final = [(band.value, band.label) for band in Band]
NAME_LENGTH: Final = 100
TYPE_LENGTH: Final = 255
USER_LENGTH: Final = 150  # length of Django's usernames
KEY_LENGTH: Final = 64
CONCURRENCY_KEY_LENGTH: Final = 128
MAX_WEIGHT: Final = 1000
