"""A clock that tests move: Django's ``timezone.now`` and PostgreSQL's functions of the time both return its time.

A statement finds ``now()`` by the search path. So a schema before ``pg_catalog`` can have its own; prepared statements
and functions are planned anew when the path changes. Only ``CURRENT_TIMESTAMP`` cannot be replaced so.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from typing import Any, Final
from unittest.mock import patch
from weakref import WeakSet

import psycopg
from django.db import connections
from django.utils import timezone
from psycopg.pq import TransactionStatus

from queue_app import conf

_PATH: Final = "taskqueue_testing, pg_catalog, "
_INSTALL: Final = "CREATE SCHEMA IF NOT EXISTS taskqueue_testing;" + ";".join(
    f"CREATE OR REPLACE FUNCTION taskqueue_testing.{name}() RETURNS timestamptz LANGUAGE sql {kind} AS $$"
    f" SELECT COALESCE(NULLIF(current_setting('taskqueue.now', true), '')::timestamptz, pg_catalog.{name}()) $$"
    for name, kind in {
        "now": "STABLE",
        "transaction_timestamp": "STABLE",
        "statement_timestamp": "STABLE",
        "clock_timestamp": "VOLATILE",
    }.items()
)
_SET: Final = """
SELECT set_config('taskqueue.now', %s, false),
    CASE WHEN NOT starts_with(path, %s) THEN set_config('search_path', %s || path, false) END
FROM current_setting('search_path') AS path
"""
_RESET: Final = """
SELECT set_config('taskqueue.now', '', false),
    set_config('search_path', replace(current_setting('search_path'), %s, ''), false)
"""


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
        tell_sessions()
        return time


_frozen: list[Clock] = []
#: The sessions that have a test's time.
_told: WeakSet[psycopg.Connection[Any]] = WeakSet()


def current() -> Clock | None:
    """Return the clock of the innermost ``freeze`` block, or ``None`` outside of one."""
    return _frozen[-1] if _frozen else None


def tell_sessions() -> None:
    """Give this thread's session, and those that have it already, the time of the test; or the real one again.

    A rollback takes the time back, and a session of another thread does not have it yet. So what runs tasks calls this.
    """
    clock = current()
    raw = connections[conf.load()[0].database_alias].connection
    if clock is not None and isinstance(raw, psycopg.Connection):
        _told.add(raw)
    for session in list(_told):
        if session.info.transaction_status not in {TransactionStatus.IDLE, TransactionStatus.INTRANS}:
            continue  # closed, or about to be rolled back
        if clock is None:
            session.execute(_RESET, [_PATH])
            _told.discard(session)
            continue
        if session.execute("SELECT to_regproc('taskqueue_testing.clock_timestamp') IS NULL").fetchone() == (True,):
            session.execute(_INSTALL)
        session.execute(_SET, [clock.now.isoformat(), _PATH, _PATH])


@contextmanager
def freeze(at: datetime | None = None) -> Iterator[Clock]:
    """Stop the time for the block, at ``at`` (aware) or now, and yield the clock that moves it.

    It patches ``django.utils.timezone.now``, for all threads, and ``now()`` and the like in the database of the tasks.
    Tables that are created meanwhile go to the schema ``taskqueue_testing``.
    """
    if at is not None and timezone.is_naive(at):
        raise ValueError("freeze() needs an aware time, such as timezone.now() or datetime(…, tzinfo=UTC).")
    clock = Clock(at or timezone.now())
    _frozen.append(clock)
    try:
        with patch.object(timezone, "now", lambda: clock.now):
            tell_sessions()
            yield clock
    finally:
        _frozen.remove(clock)
        tell_sessions()
