"""Find the queued tasks that an age has brought to another band: by their own bands, oldest first."""

from __future__ import annotations

import uuid
from datetime import datetime

from queue_app.core.records import TaskRef
from queue_app.rows.comparison import Cursor
from queue_app.rows.database import fetch_all

# By the index of queued rows; what is read beyond the band is what was queued in the same time.
_AGED = """
SELECT id, task_type, queue, priority, capabilities, queued_at, "user", concurrency_key, weight FROM queue_app_task
WHERE status = 'queued' AND priority = %s AND (queued_at, id) > (%s, %s) AND queued_at <= %s
ORDER BY queued_at, id LIMIT %s
"""


_BEGINNING = ("-infinity", uuid.UUID(int=0))


def aged_page(band: int, after: Cursor | None, until: datetime, limit: int) -> list[TaskRef]:
    """Return the queued tasks of a band that follow the cursor (queued_at, id) and were queued by ``until``."""
    return [TaskRef.from_row(row) for row in fetch_all(_AGED, [band, *(after or _BEGINNING), until, limit])]


def clock() -> datetime:
    """Return the database's time, the clock of ``queued_at``."""
    now: datetime = fetch_all("SELECT clock_timestamp()")[0][0]
    return now
