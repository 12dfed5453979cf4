"""Series for the charts: from the snapshots of queues, ending with the current state."""

from datetime import timedelta
from typing import Any, Final, NamedTuple

from django.utils import timezone

from queue_app.core.priorities import Band
from queue_app.dashboard import live
from queue_app.dashboard.cache import Shared
from queue_app.models import Queue
from queue_app.sql import charts as rows


class Range(NamedTuple):
    """Length, step (s), and the seconds for which viewers share the answer."""

    length: timedelta
    step: float
    fresh: float


RANGES: Final = {
    "15m": Range(timedelta(minutes=15), 60, 10),
    "1h": Range(timedelta(hours=1), 60, 10),
    "24h": Range(timedelta(hours=24), 600, 60),
    "7d": Range(timedelta(days=7), 3600, 300),
}
DEFAULT: Final = "1h"


def _read(key: str) -> rows.Series:
    name, _, queue = key.partition(" ")
    queues = [queue] if queue else list(Queue.objects.values_list("name", flat=True))
    chosen = RANGES[name]
    return rows.series(queues, timezone.now() - chosen.length, chosen.step)


_shared: Final = Shared(_read, lambda key: RANGES[key.partition(" ")[0]].fresh)


def chart_data(name: str, queue: str) -> dict[str, Any]:
    """Return the series of a range, for one queue or (with ``""``) for all.

    Raises ``KeyError`` for an unknown range.
    """
    chosen = RANGES[name]
    series = _shared.get(f"{name} {queue}")
    present = live.current()
    now = present.at.timestamp()
    queues = [row for row in present.queues if not queue or row.queue.name == queue]
    last: dict[str, float | None] = {band.label: 0 for band in Band}
    last["active"] = sum(row.active or 0 for row in queues)
    for band in (band for row in queues for band in row.bands):
        last[band.band.label] = (last[band.band.label] or 0) + band.depth
    return {
        "range": name,
        "from": now - chosen.length.total_seconds(),
        "to": now,
        "times": [*series.times, now],
        "values": {key: [*column, last.get(key)] for key, column in series.values.items()},
    }
