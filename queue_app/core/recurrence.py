"""When a schedule ticks: by cron, at an interval, or at given instants.

Cron follows Debian's: a fixed time in the hour that daylight saving time skips ticks right after the gap, and one in
the hour that is repeated ticks once. Intervals count real seconds, so they do not know daylight saving time.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from hashlib import blake2b
from itertools import dropwhile, islice, pairwise, takewhile
from typing import Final, NamedTuple
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError

from queue_app.core.parsing import check_range
from queue_app.core.sentence import listed, sentence, sentence_as, sentence_n
from queue_app.exceptions import InvalidTaskData

MAX_INSTANTS: Final = 1000
MIN_EVERY: Final = 1.0
MAX_EVERY: Final = 366 * 86_400.0
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MACROS: Final = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}
_DAYS: Final = ("Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
_WEEKDAYS: Final = {str(n): day for n, day in enumerate(_DAYS)} | {day[:3].upper(): day for day in _DAYS}
_WITH_SECONDS: Final = 6  # fields of a cron expression
_EXAMPLES: Final = 'such as "*/15 * * * *", "0 8 * * MON-FRI", "0 0 L * *" or "@daily"'


@dataclass(frozen=True, slots=True, kw_only=True)
class Recurrence:
    """The instants of a schedule: exactly one of ``cron``, ``every`` and ``instants`` is given."""

    cron: str = ""
    every: float | None = None  # seconds
    anchor: datetime | None = None  # an instant of the interval; None: the year 1970
    instants: tuple[datetime, ...] = ()
    zone: str = "UTC"
    starts_at: datetime | None = None
    ends_at: datetime | None = None

    def check(self) -> None:
        """Raise ``InvalidTaskData`` for a recurrence that is incomplete, contradictory or a likely mistake."""
        if [bool(self.cron), self.every is not None, bool(self.instants)].count(True) != 1:
            raise InvalidTaskData("cron", "Give one of cron, every (seconds) or instants.", code="required")
        _check_zone(self.zone)
        for field in ("anchor", "starts_at", "ends_at"):
            check_range(field, getattr(self, field))
        for instant in self.instants:
            check_range("instants", instant)
        if self.starts_at and self.ends_at and self.ends_at <= self.starts_at:
            raise InvalidTaskData("ends_at", "ends_at must be after starts_at.", code="out_of_range")
        if self.anchor is not None and self.every is None:
            raise InvalidTaskData("anchor", "anchor goes with every, and only with it.")
        if self.cron:
            _check_cron(self.cron)
        elif self.every is not None:
            if type(self.every) not in (int, float) or not MIN_EVERY <= self.every <= MAX_EVERY:
                message = f"every must be a number of seconds from {MIN_EVERY:g} to {MAX_EVERY:g}."
                raise InvalidTaskData("every", message, code="out_of_range")
        elif len(self.instants) > MAX_INSTANTS:
            message = f"A schedule has at most {MAX_INSTANTS} instants."
            raise InvalidTaskData("instants", message, code="out_of_range", limit=MAX_INSTANTS)

    def after(self, moment: datetime) -> datetime | None:
        """Return the first instant after ``moment``, in UTC; ``None`` if there is none."""
        return next(self.instants_after(moment), None)

    def instants_after(self, moment: datetime) -> Iterator[datetime]:
        """Yield the instants after ``moment``, in UTC."""
        if self.starts_at is not None:
            moment = max(moment, self.starts_at - timedelta(microseconds=1))
        with suppress(OverflowError):  # the year 9999 ends
            for instant in self._unbounded(moment.astimezone(UTC)):
                if self.ends_at is not None and instant >= self.ends_at:
                    return
                yield instant

    def _unbounded(self, moment: datetime) -> Iterator[datetime]:
        if self.cron:
            return _cron_after(self.cron, self.zone, moment)
        if self.every is not None:
            return _interval_after(self.every, self.anchor or _EPOCH, moment)
        return (instant.astimezone(UTC) for instant in sorted(set(self.instants)) if instant > moment)

    @property
    def shortest_gap(self) -> float:
        """Seconds between the two ticks that are closest; of a cron expression, among 1000 ticks."""
        if self.every is not None:
            return self.every
        instants = islice(replace(self, starts_at=None, ends_at=None).instants_after(_EPOCH), MAX_INSTANTS)
        return min(((after - before).total_seconds() for before, after in pairwise(instants)), default=math.inf)

    @property
    def words(self) -> str:
        """A phrase for people, such as "At 08:00, Monday through Friday (Europe/Berlin)"."""
        if self.cron:
            cron = _MACROS.get(self.cron, self.cron)
            text = f"{CronSim(cron, _EPOCH).explain()} ({self.zone})"  # in English only
            if (phrase := _phrase(cron)) is not None:
                return sentence_as(text, "%(when)s (%(zone)s)", when=phrase, zone=self.zone)
            return sentence_as(text, "Cron %(cron)s (%(zone)s)", cron=self.cron, zone=self.zone)
        if self.every is not None:
            return _every(self.every)
        if len(self.instants) == 1:
            at = f"{self.instants[0].astimezone(ZoneInfo(self.zone)):%Y-%m-%d %H:%M}"
            return sentence("Once, at %(time)s (%(zone)s)", time=at, zone=self.zone)
        return sentence("At %(n)s given times", n=len(self.instants))


def _phrase(cron: str) -> str | None:
    """Return a phrase that can be translated for the frequent shapes of a cron expression; ``None`` for others."""
    found = None
    match cron.upper().split():
        case [minute, "*", "*", "*", "*"]:
            step = minute.removeprefix("*/")
            if minute == "*" or (step != minute and 60 % int(step) == 0):
                found = _every(60.0 * int(step if step != "*" else 1))
            elif minute.isdigit():
                found = sentence("At minute %(n)s of each hour", n=int(minute))
        case [minute, hour, day, "*", weekday] if minute.isdigit() and hour.isdigit():
            time = f"{int(hour):02}:{int(minute):02}"
            if day == weekday == "*":
                found = sentence("Each day at %(time)s", time=time)
            elif day == "*" and (days := _weekdays(weekday)):
                found = sentence("%(days)s at %(time)s", days=days, time=time)
            elif weekday == "*" and day == "L":
                found = sentence("On the last day of each month at %(time)s", time=time)
            elif weekday == "*" and day.isdigit():
                found = sentence("On day %(day)s of each month at %(time)s", day=int(day), time=time)
    return found


def _weekdays(field: str) -> str | None:
    """Return the weekdays of a field such as ``MON-FRI`` or ``6,0``; ``None`` for other shapes."""
    ends = [_WEEKDAYS.get(part) for part in re.split("[-,]", field)]
    if None in ends or ("-" in field and len(ends) != 2):  # noqa: PLR2004 - the ends of a range
        return None
    names = [sentence(name) for name in ends if name]  # Django's catalogue has the weekdays
    return sentence("%(first)s to %(last)s", first=names[0], last=names[1]) if "-" in field else listed(names)


def jitter_of(name: str, instant: datetime, longest: float) -> timedelta:
    """Return the delay of one tick: between 0 and ``longest`` seconds, the same in every process."""
    if not longest:
        return timedelta()
    digest = blake2b(f"{name}@{instant.isoformat()}".encode(), digest_size=8).digest()
    return timedelta(seconds=longest * int.from_bytes(digest) / 2**64)


#: Files that are no zones; each machine may have others.
_NO_ZONES: Final = {"localtime", "posixrules", "Factory"}


def _check_zone(zone: str) -> None:
    try:
        ZoneInfo("" if zone in _NO_ZONES else zone)
    except Exception:  # noqa: BLE001 - zoneinfo raises many kinds: of files, keys and values
        message = f'{zone!r:.60} is not a time zone; use a name such as "Europe/Berlin" or "UTC".'
        raise InvalidTaskData("zone", message, code="unknown_zone") from None


def _check_cron(cron: str) -> None:
    fields = _MACROS.get(cron, cron).split()
    if cron.startswith("@") and cron not in _MACROS:
        raise InvalidTaskData("cron", f"{cron!r:.60} is unknown; use one of {', '.join(_MACROS)}.", code="invalid_cron")
    first, in_any_month = None, [*fields[:-2], "*", *fields[-1:]]
    try:
        first = next(_cron_after(cron, "UTC", _EPOCH), None)
    except CronSimError as error:
        if not _is_cron(in_any_month) or not _is_cron(["*", "*", "*", *fields[-2:-1], "*"]):
            message = f"{cron!r:.60} is not a cron expression ({error}). Write five fields, {_EXAMPLES}."
            raise InvalidTaskData("cron", message, code="invalid_cron") from None
    if first is None:
        message = f"{cron!r:.60} never ticks: no date matches it."
        raise InvalidTaskData("cron", message, code="invalid_cron")
    if len(fields) == _WITH_SECONDS and fields[0] == "*":
        message = (
            f"{cron!r:.60} ticks every second, because the first of six fields is the seconds. Write five fields to"
            ' tick every minute, or "*/1" as the first one if every second is meant.'
        )
        raise InvalidTaskData("cron", message, code="invalid_cron")


def _is_cron(fields: list[str]) -> bool:
    try:
        CronSim(" ".join(fields), _EPOCH)
    except CronSimError:
        return False
    return True


def _cron_after(cron: str, zone: str, moment: datetime) -> Iterator[datetime]:
    """Yield the ticks of a cron expression; the first one is remembered, because many schedules share it."""
    first = _first_cron(cron, zone, moment)
    if first is None:
        return
    yield first
    yield from _cron_ticks(cron, zone, first)


@lru_cache(maxsize=4096)
def _first_cron(cron: str, zone: str, moment: datetime) -> datetime | None:
    return next(_cron_ticks(cron, zone, moment), None)


def _cron_ticks(cron: str, zone: str, moment: datetime) -> Iterator[datetime]:
    local = moment.astimezone(UTC if zone == "UTC" else ZoneInfo(zone))
    ticks = (tick.astimezone(UTC) for tick in CronSim(_MACROS.get(cron, cron), local))
    # In a repeated hour CronSim goes by the clock on the wall, which may show a time that has passed.
    return dropwhile(lambda tick: tick <= moment, ticks)


def _interval_after(every: float, anchor: datetime, moment: datetime) -> Iterator[datetime]:
    number = math.floor((moment - anchor).total_seconds() / every)
    while True:
        instant = (anchor + timedelta(seconds=number * every)).astimezone(UTC)
        if instant > moment:
            yield instant
        number += 1


def _every(seconds: float) -> str:
    if seconds % 86_400 == 0:
        return sentence_n("Every day", "Every %(n)s days", int(seconds // 86_400))
    if seconds % 3600 == 0:
        return sentence_n("Every hour", "Every %(n)s hours", int(seconds // 3600))
    if seconds % 60 == 0:
        return sentence_n("Every minute", "Every %(n)s minutes", int(seconds // 60))
    return sentence("Every second") if seconds == 1 else sentence("Every %(seconds)s seconds", seconds=float(seconds))


# Decide which ticks of a schedule run, and which were missed for good.

#: Missed ticks that are counted one by one. If there are more, those up to ``RECENT`` before now are passed over.
COUNTED: Final = 10_000
RECENT: Final = timedelta(days=7)


class Policy(NamedTuple):
    """Which ticks run although they are late."""

    grace: timedelta  # a tick that is less late than this runs
    limit: int = 0  # maximum number of ticks that run, if the older ones are missed; the newest ones do
    window: timedelta = timedelta()  # age after which a missed tick never runs


class Missed(NamedTuple):
    """Consecutive ticks that do not run; ``number`` leaves out uncounted ones."""

    first: datetime
    last: datetime
    number: int


class DueTicks(NamedTuple):
    """What is due, in order: ticks that do not run, missed ticks that run, ticks that run; the first future tick."""

    missed: Missed | None
    caught_up: list[datetime]
    run: list[datetime]
    next_instant: datetime | None


def plan(  # noqa: PLR0913 - the last one by name
    recurrence: Recurrence,
    first: datetime,
    now: datetime,
    policy: Policy,
    delay: Callable[[datetime], timedelta] = lambda _instant: timedelta(),
    *,
    recorded: Collection[datetime] = (),
) -> DueTicks:
    """Divide the ticks that are due ``now``, from ``first`` on; ``delay`` is the jitter of a tick.

    A tick is missed once it is late by ``policy.grace``. Ticks that are ``recorded`` already count, but are left out.
    """
    instants = _due_from(recurrence, first, now)
    due: list[datetime] = []
    following: datetime | None = None
    for instant in instants:
        if instant + delay(instant) > now:
            following = instant
            break
        due.append(instant)
    late = list(takewhile(lambda instant: now - (instant + delay(instant)) >= policy.grace, due))
    run = due[len(late) :]
    newest = late[max(0, len(due) - policy.limit) :]
    caught_up = [instant for instant in newest if now - instant <= policy.window]
    skipped = [instant for instant in late[: len(late) - len(caught_up)] if instant not in recorded]
    caught_up, run = ([instant for instant in found if instant not in recorded] for found in (caught_up, run))
    missed = Missed(skipped[0], skipped[-1], len(skipped)) if skipped else None
    return DueTicks(missed, caught_up, run, following)


def _due_from(recurrence: Recurrence, first: datetime, now: datetime) -> Iterator[datetime]:
    """Yield ``first`` and what follows."""
    latest = first - timedelta(microseconds=1)
    for latest in islice(recurrence.instants_after(latest), COUNTED):  # noqa: B020 - the last one is used below
        yield latest
    yield from recurrence.instants_after(max(latest, now - RECENT))
