"""Queue scheduled tasks whose time has come."""

from __future__ import annotations

from queue_app.rows import waiting
from queue_app.services import events, journal
from queue_app.services.hints import tell_index

BATCH = 1000


def make_due(*, limit: int = BATCH) -> int:
    """Queue at most ``limit`` tasks that are due, earliest first; return how many.

    Safe to run twice at once: rows that another runner holds are skipped. After a crash
    between row and index the reconciler pushes what was queued.
    """
    tasks = waiting.make_due(limit)
    if tasks:
        tell_index(lambda index: index.push(tasks), "push")
        if journal.enabled():
            journal.due(tasks)
        events.count({"due": len(tasks)})
    return len(tasks)


def seconds_until_due() -> float | None:
    """Return the seconds until the next scheduled task is due; ``None`` when none is scheduled."""
    return waiting.seconds_until_due()
