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
BUCKETS: Final = (0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0, 60.0, 300.0, 900.0, 3600.0)
WAIT: Final = "wait"
RUN: Final = "run"
SUM: Final = "us"

_LABELS: Final = {int(band): band.label for band in Band}


def times_of(ended: Iterable[tuple[Outcome, Status]]) -> dict[str, int]:
    """Return the counts that these attempts add: how long each had waited, and how long it ran."""
    found: dict[tuple[str, int, Status], _Times] = {}
    for outcome, status in ended:  # in the hot path of a worker: what needs text is done once for each kind
        task, started_at = outcome.task, outcome.started_at
        kind = (task.queue, task.priority, status)
        times = found.get(kind)
        if times is None:
            times = found[kind] = _Times()
        wait = (started_at - task.queued_at).total_seconds()
        run = (outcome.finished_at - started_at).total_seconds()
        times.waits[bisect_left(BUCKETS, wait)] += 1
        times.runs[bisect_left(BUCKETS, run)] += 1
        if wait > 0:  # clocks may differ
            times.waited += wait
        if run > 0:
            times.ran += run
    counts: dict[str, int] = {}
    for (queue, priority, status), times in found.items():
        labels = f"{queue}:{_LABELS[priority]}:{status.value}"
        for name, buckets, total in ((WAIT, times.waits, times.waited), (RUN, times.runs, times.ran)):
            counts |= {f"{name}:{labels}:{place}": count for place, count in enumerate(buckets) if count}
            counts[f"{name}:{labels}:{SUM}"] = int(total * 1_000_000)
    return counts


class _Times:
    __slots__ = ("ran", "runs", "waited", "waits")

    def __init__(self) -> None:
        self.waits = [0] * (len(BUCKETS) + 1)
        self.runs = [0] * (len(BUCKETS) + 1)
        self.waited = self.ran = 0.0
