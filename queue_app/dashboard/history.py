"""What happened in the queues lately, by their snapshots, for the overview.

A snapshot comes once a minute, and tells of the full minute before. So the first tasks that
end, on a fresh install or after a quiet time, would not be seen for up to two. As long as
the snapshots know of nothing that ended, the rows are asked for the last 60 seconds: this
reads what ended in them, and so nothing where all is quiet.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Final

from django.utils import timezone

from queue_app.dashboard.cache import Shared
from queue_app.dashboard.queue_row import QueueRow
from queue_app.sql import charts

HISTORY: Final = timedelta(minutes=60)
#: What a snapshot that is older than this tells of is no longer the last minute.
CURRENT: Final = timedelta(minutes=3)
#: Seconds for which viewers share the snapshots, which come once a minute.
FRESH_HISTORY: Final = 15.0
#: Seconds for which they share what ended lately.
FRESH_ENDED: Final = 4.0


def _read_history(names: str) -> dict[str, list[charts.Recent]]:
    found: dict[str, list[charts.Recent]] = {}
    for item in charts.recent(names.split(","), timezone.now() - HISTORY):
        found.setdefault(item.queue, []).append(item)
    return found


def add_history(rows: Sequence[QueueRow], now: datetime) -> None:
    """Add to the rows of all queues what waited and ended lately."""
    known = _history.get(",".join(row.queue.name for row in rows))
    for row in rows:
        past = known.get(row.queue.name, [])
        row.depths = [item.depth or 0 for item in past]
        row.ended = [item.completed + item.failed for item in past]
        if past and now - past[-1].taken_at < CURRENT:
            row.completed, row.failed = past[-1].completed, past[-1].failed
    if not any(row.completed or row.failed for row in rows):
        ended = _ended.get()
        for row in rows:
            row.completed, row.failed = ended.get(row.queue.name, (row.completed, row.failed))


def forget() -> None:
    """Read everything anew at the next look."""
    _history.forget()
    _ended.forget()


_history: Final = Shared(_read_history, lambda _: FRESH_HISTORY)
_ended: Final = Shared(lambda _: charts.ended_lately(), lambda _: FRESH_ENDED)
