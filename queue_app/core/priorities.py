"""The five priority bands, their names, and the mapping from Django's -100..100."""

from enum import IntEnum
from functools import cache
from typing import Final

from queue_app.exceptions import InvalidTaskData


class Band(IntEnum):
    """A priority band; lower numbers run first."""

    CRITICAL = 0
    HIGH = 1
    NORMAL = 2
    LOW = 3
    BACKGROUND = 4

    def __init__(self, _number: int) -> None:
        self.label: str = self._name_.lower()  # in all interfaces; a property would be read for each task


BAND_NAMES: Final = tuple(band.label for band in Band)  # by number
_BY_NAME: Final = {band.label: band for band in Band} | {"medium": Band.NORMAL}
#: Lowest Django priority of each band above background, highest first.
_THRESHOLDS: Final = ((75, Band.CRITICAL), (25, Band.HIGH), (-24, Band.NORMAL), (-74, Band.LOW))
_TO_DJANGO: Final = {Band.CRITICAL: 100, Band.HIGH: 50, Band.NORMAL: 0, Band.LOW: -50, Band.BACKGROUND: -100}


def parse_band(value: object, *, field: str = "priority") -> Band:
    """Return the band named ``value`` (``medium`` means normal); raise ``InvalidTaskData`` for other values."""
    if isinstance(value, Band):
        return value
    band = _BY_NAME.get(value) if isinstance(value, str) else None
    if band is None:
        raise InvalidTaskData(
            field,
            f"{value!r} is not a priority; use one of {', '.join(BAND_NAMES)}, or medium for normal.",
            code="unknown_priority",
        )
    return band


@cache
def band_from_django(priority: int) -> Band:
    """Return the band of a Django task priority (-100..100)."""
    for threshold, band in _THRESHOLDS:
        if priority >= threshold:
            return band
    return Band.BACKGROUND


def django_priority(band: Band) -> int:
    """Return the Django priority that represents ``band``."""
    return _TO_DJANGO[band]
