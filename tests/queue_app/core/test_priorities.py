"""Bands, their names, and Django's -100..100."""

import pytest

from queue_app.core.priorities import BAND_NAMES, Band, band_from_django, django_priority, parse_band
from queue_app.exceptions import InvalidTaskData


def test_names_in_the_order_in_which_they_run():
    assert BAND_NAMES == ("critical", "high", "normal", "low", "background")
    assert [band.value for band in Band] == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("band", Band)
def test_a_band_is_parsed_by_name_and_as_itself(band):
    assert parse_band(band.label) is parse_band(band) is band


def test_medium_is_normal():
    assert parse_band("medium") is Band.NORMAL


@pytest.mark.parametrize("value", ["", "High", " high", "urgent", "2", 2, 0, True, None, 1.0, ["high"], {}, b"high"])
def test_anything_else_is_refused(value):
    with pytest.raises(InvalidTaskData, match="use one of critical, high, normal, low, background") as refused:
        parse_band(value, field="band")
    assert (refused.value.field, refused.value.code) == ("band", "unknown_priority")


@pytest.mark.parametrize(
    ("priority", "band"),
    [
        (100, Band.CRITICAL),
        (75, Band.CRITICAL),
        (74, Band.HIGH),
        (25, Band.HIGH),
        (24, Band.NORMAL),
        (0, Band.NORMAL),
        (-24, Band.NORMAL),
        (-25, Band.LOW),
        (-74, Band.LOW),
        (-75, Band.BACKGROUND),
        (-100, Band.BACKGROUND),
    ],
)
def test_djangos_priorities(priority, band):
    assert band_from_django(priority) is band


@pytest.mark.parametrize("band", Band)
def test_there_and_back(band):
    assert band_from_django(django_priority(band)) is band
