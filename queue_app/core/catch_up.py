"""Decide which ticks of a schedule run, and which were missed for good."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from datetime import datetime, timedelta
from itertools import islice, takewhile
from typing import Final, NamedTuple

from queue_app.core.recurrence import Recurrence

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
