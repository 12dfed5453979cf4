"""What is counted for the whole cluster, and under which names: numbers that only rise.

They travel with the lifecycle events and are kept by the index in one hash, so no process
holds metrics of its own. A name is parts with colons between; no part holds one.

- ``event:NAME:QUEUE:BAND:STATUS:REASON``: how often it happened;
- ``wait:QUEUE:BAND:STATUS:N`` and ``run:…``: attempts whose time fell into bucket ``N``;
- ``wait:QUEUE:BAND:STATUS:us`` and ``run:…``: the sum of these times, in µs;
- others as their writers say (``repair:KIND``, ``worker:dead``, ``retry:worker_died``).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from typing import Final

from queue_app.core.priorities import Band
from queue_app.core.records import Outcome
from queue_app.core.states import Status

#: Upper bounds of the buckets of both histograms, in seconds; one more holds what is longer.
BUCKETS: Final = (0.005, 0.025, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 900.0, 1500.0, 3600.0)
WAIT: Final = "wait"
RUN: Final = "run"
SUM: Final = "us"

_LABELS: Final = {int(band): band.label for band in Band}


def times_of(ended: Iterable[tuple[Outcome, Status]]) -> dict[str, int]:
    """Return the counts that these attempts add: how long each had waited, and how long it ran."""
    counts: dict[str, int] = {}
    for outcome, status in ended:
        task = outcome.task
        kind = f":{task.queue}:{_LABELS[task.priority]}:{status.value}:"
        wait = max(0.0, (outcome.started_at - task.queued_at).total_seconds())
        run = max(0.0, (outcome.finished_at - outcome.started_at).total_seconds())
        for name, seconds in ((WAIT, wait), (RUN, run)):
            bucket = f"{name}{kind}{bisect_left(BUCKETS, seconds)}"
            counts[bucket] = counts.get(bucket, 0) + 1
            total = f"{name}{kind}{SUM}"
            counts[total] = counts.get(total, 0) + int(seconds * 1_000_000)
    return counts
