"""Counters of the whole cluster, and the histograms and tallies of times.

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

import gc
import os
import threading
import time
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from itertools import accumulate
from threading import Lock
from typing import Final

from queue_app.core.events import Ended
from queue_app.core.priorities import BAND_NAMES
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


def times_of(ended: Iterable[Ended]) -> dict[str, int]:
    """Return the increments of the histograms of waits, runs and whole lives for attempts that ended."""
    found: dict[tuple[str, int, Status], _Times] = {}
    for outcome, status, _retry_in in ended:  # hot path: texts are built once per kind, below
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


# Histograms of times; each bucket is half as long again as the one before. They can be added, and give percentiles.

_FIRST, _RATIO, _COUNT = 0.001, 1.5, 46
#: Upper bounds of the buckets in seconds: from 1 ms to about 25 hours. The last bucket has none.
BOUNDS: Final = tuple(_FIRST * _RATIO**n for n in range(_COUNT))


def bounds_of(bucket: int) -> tuple[float, float]:
    """Return the bounds of a bucket in seconds."""
    low = BOUNDS[bucket - 1] if bucket else 0.0
    return low, BOUNDS[min(bucket, _COUNT - 1)] if bucket < _COUNT else BOUNDS[-1] * _RATIO


def percentile(counts: Mapping[int, int], share: float) -> float | None:
    """Return a percentile in seconds, off by at most a quarter; ``None`` without times."""
    total = sum(counts.values())
    if not total:
        return None
    wanted, buckets = share * total, sorted(counts)
    for bucket, below in zip(buckets, accumulate(counts[bucket] for bucket in buckets), strict=True):
        if below >= wanted:
            low, high = bounds_of(bucket)
            inside = (wanted - (below - counts[bucket])) / counts[bucket]
            return low + (high - low) * max(0.0, min(1.0, inside))
    return None


def as_json(counts: Mapping[int, int]) -> dict[str, int]:
    """Return the counts as JSON can store them."""
    return {str(bucket): count for bucket, count in counts.items() if count}


def from_json(stored: Mapping[str, int]) -> Counter[int]:
    """Return the counts that ``as_json`` stored."""
    return Counter({int(bucket): count for bucket, count in stored.items()})


# Count by name in this process: failed logins of the API and the admin, and requests for the OpenAPI document.

WINDOW_SECONDS: Final = 60
MAX_CACHED: Final = 10_000


class Tally:
    """Counts by name in this process and this minute, without Redis: what attackers do must cost no round trip."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._window = 0
        self._counts: Counter[tuple[str, ...]] = Counter()

    def wait(self, *name: str, limit: int) -> float | None:
        """Return the seconds until the next minute if the count of a name has reached its limit, else ``None``."""
        now = time.time()
        with self._lock:
            self._turn(now)
            is_full = 0 < limit <= self._counts[name]
        return (self._window + 1) * WINDOW_SECONDS - now if is_full else None

    def add(self, *name: str) -> None:
        with self._lock:
            self._turn(time.time())
            self._counts[name] += 1

    def forget(self) -> None:
        self._window = 0

    def _turn(self, now: float) -> None:
        window = int(now // WINDOW_SECONDS)
        if window != self._window or len(self._counts) > MAX_CACHED:
            self._window = window
            self._counts.clear()


#: By the address of the connection and the name of the user.
failed_logins = Tally()


# Pause Python's garbage collector while a call makes many objects.

#: Maximum number of tasks for which the collector pauses: half a second at most.
MOST: Final = 20_000

#: The thread that has paused the collector, if any.
_paused_for: Final[set[int]] = set()


@contextmanager
def collector_paused(tasks: int) -> Iterator[None]:
    """Start no collection inside the block, which makes objects for this number of tasks.

    The objects live until the block ends, so a collection frees nothing. But it reads all objects of the process, which
    takes as long as storing thousands of tasks. If the project or another thread has switched the collector off, the
    block leaves it alone.
    """
    if tasks > MOST or not gc.isenabled():
        yield
        return
    thread = threading.get_ident()
    _paused_for.add(thread)
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
        _paused_for.discard(thread)


def _resume_in_child() -> None:
    """Start collections again in a process that another thread has forked meanwhile: it has only that thread."""
    if _paused_for:
        _paused_for.clear()
        gc.enable()


os.register_at_fork(after_in_child=_resume_in_child)
