"""A clock that tests move; while it is frozen, Django's ``timezone.now`` returns its time."""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from unittest.mock import patch

from django.utils import timezone


class Clock:
    """The time of a ``freeze`` block; only ``advance`` and ``move_to`` change it."""

    def __init__(self, start: datetime) -> None:
        self.now = start
        self.ticked_until = start  # schedules have ticked up to this time (``run_schedules``)

    def advance(self, by: float | timedelta) -> datetime:
        """Move forward by seconds or a timedelta; return the new time. Raises ``ValueError`` for going back."""
        return self.move_to(self.now + (by if isinstance(by, timedelta) else timedelta(seconds=by)))

    def move_to(self, time: datetime) -> datetime:
        """Move forward to an aware time; return it. Raises ``ValueError`` for going back."""
        if time < self.now:
            raise ValueError(f"The clock shows {self.now:%Y-%m-%d %H:%M:%S%z} and cannot go back to {time}.")
        self.now = time
        return time


_frozen: list[Clock] = []


def current() -> Clock | None:
    """Return the clock of the innermost ``freeze`` block, or ``None`` outside of one."""
    return _frozen[-1] if _frozen else None


@contextmanager
def freeze(at: datetime | None = None) -> Iterator[Clock]:
    """Stop the time for the block, at ``at`` (aware) or now, and yield the clock that moves it.

    It patches ``django.utils.timezone.now``, for all threads. The clock of a database is not affected.
    """
    if at is not None and timezone.is_naive(at):
        raise ValueError("freeze() needs an aware time, such as timezone.now() or datetime(…, tzinfo=UTC).")
    clock = Clock(at or timezone.now())
    _frozen.append(clock)
    try:
        with patch.object(timezone, "now", lambda: clock.now):
            yield clock
    finally:
        _frozen.remove(clock)
