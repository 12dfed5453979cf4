"""A scrape of /metrics of the queue: all lanes counted, and a busy history in the counters."""

import os
from statistics import median

from bench import Table, analyze, reset, timed
from growth import processor_seconds

from queue_app.core.counters import BUCKETS, RUN, SUM, WAIT
from queue_app.core.events import EventName
from queue_app.core.priorities import Band
from queue_app.core.records import NewTask
from queue_app.core.states import Status
from queue_app.index import get_index
from queue_app.metrics.exposition import of_queue
from queue_app.services.enqueue.store import enqueue_many

QUEUES = 10
ROUNDS = 50


def run(table: Table) -> None:
    """Measure it with 1 000 000 queued rows in 5 000 lanes of ten queues."""
    n, lanes = table.sized(1_000_000), table.sized(5_000)
    reset()
    for start in range(0, n, 10_000):
        enqueue_many(
            NewTask(
                task_type=f"bench.type{number % lanes}",
                queue=f"q{number % lanes % QUEUES}",
                parameters={"number": number},
            )
            for number in range(start, min(n, start + 10_000))
        )
    analyze()
    get_index().count(_history())
    of_queue()
    used = processor_seconds(os.getpid())
    times = [timed(of_queue) for _ in range(ROUNDS)]
    used = processor_seconds(os.getpid()) - used
    lines = of_queue().count(b"\n")
    table.add(
        f"scrape with {n:,} rows in {lanes:,} lanes ({lines:,} lines), ms (median, worst)",
        "≤ 10",
        f"{median(times) * 1000:.1f}, {max(times) * 1000:.1f}",
    )
    table.add("the same: processor time of web process and both servers, ms", "-", f"{used / ROUNDS * 1000:.1f}")


def _history() -> dict[str, int]:
    """Return counts as a system has that ran for a while: every queue, two bands, completed and retried."""
    counts: dict[str, int] = {}
    for queue in range(QUEUES):
        for band in (Band.HIGH, Band.NORMAL):
            for status in (Status.COMPLETED, Status.SCHEDULED):
                kind = f"q{queue}:{band.label}:{status.value}"
                for place in (*range(len(BUCKETS) + 1), SUM):
                    counts |= {f"{WAIT}:{kind}:{place}": 7, f"{RUN}:{kind}:{place}": 7}
                counts[f"event:{EventName.COMPLETED}:{kind}:"] = 7
    return counts
