"""Decide which ticks of a schedule run, and which were missed for good."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from datetime import datetime, timedelta
from itertools import islice
from typing import Final, NamedTuple

from queue_app.core.recurrence import Recurrence

#: Delay after which a tick counts as missed, so that it is the schedule's to say whether it still runs.
LATE: Final = timedelta(seconds=60)
#: Missed ticks that are counted one by one. If there are more, those up to ``RECENT`` before now are passed over.
COUNTED: Final = 10_000
RECENT: Final = timedelta(days=7)


class Policy(NamedTuple):
    """How many missed ticks a schedule makes up for, newest first, and how old they may be."""

    limit: int  # 0: none
    window: timedelta


class Missed(NamedTuple):
    """Consecutive ticks that do not run; ``number`` leaves out uncounted ones."""

    first: datetime
    last: datetime
    number: int


class DueTicks(NamedTuple):
    """What is due: ticks that do not run, then ticks that run, in order; and the first tick in the future."""

    missed: Missed | None
    run: list[datetime]
    is_late: bool  # the newest of ``run`` was missed too
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

    A policy with the limit 0 still runs the newest tick if it is not late. Ticks that are ``recorded`` already count,
    but are left out.
    """
    instants = _due_from(recurrence, first, now)
    due: list[datetime] = []
    following: datetime | None = None
    for instant in instants:
        if instant + delay(instant) > now:
            following = instant
            break
        due.append(instant)
    if not due:
        return DueTicks(None, [], False, following)
    is_late = now - (due[-1] + delay(due[-1])) > LATE
    wanted = policy.limit if is_late else max(policy.limit, 1)
    run = [instant for instant in due[len(due) - wanted :] if wanted and now - instant <= policy.window]
    if not is_late and not run:  # the newest is on time, whatever the window
        run = due[-1:]
    skipped = [instant for instant in due[: len(due) - len(run)] if instant not in recorded]
    run = [instant for instant in run if instant not in recorded]
    missed = Missed(skipped[0], skipped[-1], len(skipped)) if skipped else None
    return DueTicks(missed, run, is_late, following)


def _due_from(recurrence: Recurrence, first: datetime, now: datetime) -> Iterator[datetime]:
    """Yield ``first`` and what follows."""
    latest = first - timedelta(microseconds=1)
    for latest in islice(recurrence.instants_after(latest), COUNTED):  # noqa: B020 - the last one is used below
        yield latest
    yield from recurrence.instants_after(max(latest, now - RECENT))
