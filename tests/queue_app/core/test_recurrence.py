"""When a schedule ticks."""

from datetime import UTC, datetime, timedelta
from itertools import islice, pairwise
from zoneinfo import ZoneInfo

import pytest
from croniter import croniter

from queue_app.core.recurrence import Recurrence, jitter_of
from queue_app.exceptions import InvalidTaskData

#: Daylight saving by an hour, by half an hour, in the south, none, and one that changed its rules.
ZONES = ["Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "Asia/Tokyo", "America/Sao_Paulo"]
BERLIN = ZoneInfo("Europe/Berlin")


def at(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


def ticks(start: str, number: int, **when) -> list[str]:
    found = islice(Recurrence(**when).instants_after(at(start)), number)
    return [f"{instant:%m-%d %H:%M}" for instant in found]


def test_cron_in_a_zone():
    assert ticks("2026-01-30", 3, cron="0 8 * * MON-FRI", zone="Europe/Berlin") == [
        "01-30 07:00", "02-02 07:00", "02-03 07:00"
    ]  # fmt: skip
    assert ticks("2026-01-30", 2, cron="0 0 L * *") == ["01-31 00:00", "02-28 00:00"]
    assert ticks("2026-01-30", 2, cron="0 9 * * MON#1") == ["02-02 09:00", "03-02 09:00"]
    assert ticks("2026-01-30", 2, cron="@daily", zone="Asia/Tokyo") == ["01-30 15:00", "01-31 15:00"]


def test_an_interval_from_its_anchor():
    anchor = at("2026-01-01T00:10")
    assert ticks("2026-01-01", 3, every=900, anchor=anchor) == ["01-01 00:10", "01-01 00:25", "01-01 00:40"]
    assert ticks("2025-12-31T23:50", 1, every=900, anchor=anchor) == ["12-31 23:55"]
    assert ticks("2026-01-01T00:10", 1, every=86_400) == ["01-02 00:00"]


def test_given_times_and_an_end():
    times = (at("2026-03-01"), at("2026-02-01"))
    assert ticks("2026-01-01", 5, instants=times) == ["02-01 00:00", "03-01 00:00"]
    assert ticks("2026-01-01", 5, instants=times, ends_at=at("2026-03-01")) == ["02-01 00:00"]
    assert ticks("2026-01-01", 2, every=3600, starts_at=at("2026-01-02"))[0] == "01-02 00:00"


def test_a_fixed_time_in_the_skipped_hour_ticks_right_after_the_gap():
    """Berlin's clocks go from 02:00 to 03:00 on 29 March 2026."""
    local = Recurrence(cron="30 2 * * *", zone="Europe/Berlin").instants_after(at("2026-03-28T12:00"))
    assert [f"{next(local).astimezone(BERLIN):%d %H:%M}" for _ in range(2)] == ["29 03:00", "30 02:30"]


def test_a_fixed_time_in_the_repeated_hour_ticks_once():
    """Berlin's clocks go from 03:00 to 02:00 on 25 October 2026."""
    assert ticks("2026-10-24T12:00", 2, cron="30 2 * * *", zone="Europe/Berlin") == ["10-25 00:30", "10-26 01:30"]
    # Asked in the middle of the repeated hour, the tick of its first pass is over.
    assert ticks("2026-10-25T01:10", 1, cron="30 2 * * *", zone="Europe/Berlin") == ["10-26 01:30"]


def test_ticks_of_every_hour_go_by_real_time_through_both():
    assert ticks("2026-03-29T00:00", 2, cron="0 * * * *", zone="Europe/Berlin") == ["03-29 01:00", "03-29 02:00"]
    assert ticks("2026-10-24T23:59", 3, cron="0 * * * *", zone="Europe/Berlin") == [
        "10-25 00:00", "10-25 01:00", "10-25 02:00"
    ]  # fmt: skip


@pytest.mark.parametrize("zone", ZONES)
@pytest.mark.parametrize("cron", ["*/20 * * * *", "7 * * * *"])
def test_against_another_implementation(zone, cron):
    """Croniter is the oracle where both follow real time; it handles fixed times in gaps by another rule."""
    for year in range(2020, 2041):
        for month in (2, 3, 4, 9, 10, 11):
            start = datetime(year, month, 1, tzinfo=UTC)
            ours = Recurrence(cron=cron, zone=zone).instants_after(start)
            theirs = croniter(cron, start.astimezone(ZoneInfo(zone)), ret_type=datetime)
            for _ in range(3):
                assert next(ours) == theirs.get_next(datetime).astimezone(UTC)


def changes(zone: str) -> list[datetime]:
    """Return the days from 2020 to 2040 on which the clocks of a zone change."""
    noons = (datetime(2020, 1, 1, 12, tzinfo=ZoneInfo(zone)) + timedelta(days=number) for number in range(21 * 365))
    return [after for before, after in pairwise(noons) if before.utcoffset() != after.utcoffset()]


@pytest.mark.parametrize("zone", ZONES)
def test_a_daily_tick_comes_once_on_every_date(zone):
    """In a whole year, and through each change of the clocks until 2040, also for a time that it skips or repeats."""
    spans = [(datetime(2020, 1, 1, tzinfo=UTC), 366), *((day - timedelta(days=3), 7) for day in changes(zone))]
    assert len(spans) == {"Europe/Berlin": 43, "America/New_York": 43, "Australia/Lord_Howe": 43}.get(zone, 1)
    for cron in ("30 2 * * *", "0 0 * * *", "15 1 * * *"):
        for start, number in spans:
            instants = islice(Recurrence(cron=cron, zone=zone).instants_after(start.astimezone(UTC)), number)
            local = [instant.astimezone(ZoneInfo(zone)).date() for instant in instants]
            assert {(after - before).days for before, after in pairwise(local)} == {1}, start


@pytest.mark.parametrize(
    ("when", "field", "says"),
    [
        ({"cron": "0 0 30 2 *"}, "cron", "never ticks"),
        ({"cron": "* * * * * *"}, "cron", "every second"),
        ({"cron": "61 * * * *"}, "cron", "Bad minute"),
        ({"cron": "0 0 * 13 *"}, "cron", "Bad month"),
        ({"cron": "@weekley"}, "cron", "use one of"),
        ({"cron": "daily"}, "cron", "five fields"),
        ({"cron": "@daily", "zone": "Berlin"}, "zone", "Europe/Berlin"),
        ({"cron": "@daily", "zone": "../../etc/passwd"}, "zone", "not a time zone"),
        ({"cron": "@daily", "zone": "localtime"}, "zone", "not a time zone"),
        ({"cron": "@daily", "every": 60}, "cron", "one of"),
        ({}, "cron", "one of"),
        ({"every": 0}, "every", "from 1"),
        ({"every": float("nan")}, "every", "from 1"),
        ({"cron": "@daily", "anchor": at("2026-01-01")}, "anchor", "goes with every"),
        ({"cron": "@daily", "starts_at": at("2026-01-02"), "ends_at": at("2026-01-01")}, "ends_at", "after starts_at"),
        ({"instants": (at("2026-01-01"),) * 1001}, "instants", "at most 1000"),
    ],
)
def test_a_mistake_is_named(when, field, says):
    with pytest.raises(InvalidTaskData, match=says) as refused:
        Recurrence(**when).check()
    assert refused.value.field == field


@pytest.mark.parametrize(
    ("when", "words"),
    [
        ({"cron": "0 8 * * MON-FRI", "zone": "Europe/Berlin"}, "At 08:00 on Monday through Friday (Europe/Berlin)"),
        ({"every": 5400}, "Every 90 minutes"),
        ({"every": 86_400}, "Every day"),
        ({"every": 1.5}, "Every 1.5 seconds"),
        ({"instants": (at("2026-05-01T08:00"),)}, "Once, at 2026-05-01 08:00 (UTC)"),
        ({"instants": (at("2026-05-01"), at("2026-06-01"))}, "At 2 given times"),
    ],
)
def test_words_for_people(when, words):
    assert Recurrence(**when).words == words


def test_jitter_is_the_same_in_every_process_and_spread_over_its_range():
    instant = at("2026-01-01")
    delays = [jitter_of(f"schedule {number}", instant, 60).total_seconds() for number in range(1000)]
    assert delays == [jitter_of(f"schedule {number}", instant, 60).total_seconds() for number in range(1000)]
    assert 0 <= min(delays) < 3
    assert 57 < max(delays) < 60
    assert jitter_of("a", instant, 0) == timedelta()
