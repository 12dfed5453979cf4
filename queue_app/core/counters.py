"""Names and increments of the counters of the whole cluster.

Increments travel with the lifecycle events. The index adds them up in one hash, so no process
keeps metrics of its own. The parts of a name are separated by colons and contain none.

- ``event:NAME:QUEUE:BAND:STATUS:REASON``: number of such events;
- ``wait:QUEUE:BAND:STATUS:N``, ``run:…``, ``whole:…``: attempts whose time falls into bucket ``N``; ``whole`` is the
  time from the enqueue to the end of the task;
- ``wait:QUEUE:BAND:STATUS:us``, ``run:…``, ``whole:…``: the sum of these times, in µs;
- ``tick:OUTCOME``, ``late:N``, ``late:us``: ticks of schedules, and how late their tasks were enqueued;
- ``adapted``: changes of adaptive limits;
- ``repair:KIND``, ``stall:KIND``, ``worker:dead``, ``retry:worker_died:BAND``: defined by the code that counts.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable
from typing import Final

from queue_app.core.priorities import BAND_NAMES
from queue_app.core.records import Outcome
from queue_app.core.states import TERMINAL, Status

#: Upper bounds of the buckets of both histograms, in seconds. One more bucket holds longer times.
BUCKETS: Final = (0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0, 60.0, 300.0, 900.0, 3600.0)
WAIT: Final = "wait"
RUN: Final = "run"
WHOLE: Final = "whole"
SUM: Final = "us"
TICK: Final = "tick"
LATE: Final = "late"
ADAPTED: Final = "adapted"
#: What may become of a tick.
TICKS: Final = ("enqueued", "skipped", "refused")


def lateness_of(seconds: Iterable[float]) -> dict[str, int]:
    """Return the increments of the histogram of lateness."""
    found = list(seconds)
    counts = Counter(f"{LATE}:{bisect_left(BUCKETS, late)}" for late in found)
    return counts | {f"{LATE}:{SUM}": int(sum(found) * 1_000_000)} if found else {}


def times_of(ended: Iterable[tuple[Outcome, Status]]) -> dict[str, int]:
    """Return the increments of the histograms of waits, runs and whole lives for attempts that ended."""
    found: dict[tuple[str, int, Status], _Times] = {}
    for outcome, status in ended:  # hot path: texts are built once per kind, below
        task, started_at = outcome.task, outcome.started_at
        kind = (task.queue, task.priority, status)
        times = found.get(kind)
        if times is None:
            times = found[kind] = _Times()
        wait = (started_at - task.queued_at).total_seconds()
        run = (outcome.finished_at - started_at).total_seconds()
        times.waits[bisect_left(BUCKETS, wait)] += 1
        times.runs[bisect_left(BUCKETS, run)] += 1
        if wait > 0:  # negative if clocks differ
            times.waited += wait
        if run > 0:
            times.ran += run
        if status in TERMINAL:
            whole = (outcome.finished_at - task.created_at).total_seconds()
            times.wholes[bisect_left(BUCKETS, whole)] += 1
            times.lived += max(0.0, whole)
    counts: dict[str, int] = {}
    for (queue, priority, status), times in found.items():
        labels = f"{queue}:{BAND_NAMES[priority]}:{status.value}"
        for name, buckets, total in (
            (WAIT, times.waits, times.waited), (RUN, times.runs, times.ran), (WHOLE, times.wholes, times.lived)
        ):  # fmt: skip
            if not any(buckets):
                continue
            counts |= {f"{name}:{labels}:{place}": count for place, count in enumerate(buckets) if count}
            counts[f"{name}:{labels}:{SUM}"] = int(total * 1_000_000)
    return counts


class _Times:
    __slots__ = ("lived", "ran", "runs", "waited", "waits", "wholes")

    def __init__(self) -> None:
        self.waits = [0] * (len(BUCKETS) + 1)
        self.runs = [0] * (len(BUCKETS) + 1)
        self.wholes = [0] * (len(BUCKETS) + 1)
        self.waited = self.ran = self.lived = 0.0
