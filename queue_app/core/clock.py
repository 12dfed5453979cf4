"""The wall clock of this process.

It only labels events: rows use PostgreSQL's ``clock_timestamp()``, the index uses Redis' ``TIME``.
"""

from datetime import UTC, datetime


def now() -> datetime:
    """Return the current time, aware, in UTC."""
    return datetime.now(UTC)
