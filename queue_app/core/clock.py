"""The wall clock of this process, in one place so that tests can replace it.

Durable decisions use PostgreSQL's ``clock_timestamp()`` and hot ones Redis' ``TIME``;
this clock only labels what a worker saw.
"""

from __future__ import annotations

from datetime import UTC, datetime


def now() -> datetime:
    """Return the present time, aware, in UTC."""
    return datetime.now(UTC)
