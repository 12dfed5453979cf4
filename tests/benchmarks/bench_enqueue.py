"""Enqueueing: one by one against a bare INSERT loop, and many at once."""

import json
import os
import subprocess
import sys
from statistics import median

import psycopg
from bench import Table, register, reset, timed
from bench_app.tasks import noop
from django.db import connection
from django.tasks import default_task_backend

from queue_app.core.ids import uuid7

ROUNDS = 7
PER_ROUND = 500
_BARE = """
INSERT INTO queue_app_task (id, task_type, queue, status, priority, capabilities, "user", attempt, failures,
    created_at, queued_at)
VALUES (%s, 'bench_app.tasks.noop', 'default', 'queued', 2, '{}', '', 0, 0, now(), now())
"""


# Prints how long the first and the second enqueue of a process take, in ms.
_FRESH = """
import time, django
django.setup()
from bench_app.tasks import noop
from django.db import connection
connection.ensure_connection()
times = [time.perf_counter()]
for number in range(2):
    noop.enqueue(number)
    times.append(time.perf_counter())
    time.sleep(0.5)
    times.append(time.perf_counter())
print((times[1] - times[0]) * 1000, (times[3] - times[2]) * 1000)
"""


def _fresh() -> tuple[float, float]:
    """Return how long the first and the second enqueue of a new process took, in ms."""
    done = subprocess.run([sys.executable, "-c", _FRESH], check=True, capture_output=True, text=True)
    first, second = map(float, done.stdout.split())
    return first, second


def run(table: Table) -> None:
    """Measure single enqueues in turn with bare inserts, then the bulk call, then the first enqueue of a process."""
    register()
    connection.ensure_connection()
    with psycopg.connect(os.environ["DATABASE_URL"], autocommit=True) as bare:

        def insert() -> None:
            for number in range(PER_ROUND):
                json.dumps({"number": number})
                bare.execute(_BARE, [uuid7()])

        def enqueue() -> None:
            for number in range(PER_ROUND):
                noop.enqueue(number)

        insert()
        enqueue()
        times = [(timed(insert), timed(enqueue)) for _ in range(ROUNDS)]
    ratio = median(inserted / enqueued for inserted, enqueued in times)
    rate = PER_ROUND / median(enqueued for _, enqueued in times)
    table.add("single enqueue / bare INSERT+commit loop", "≥ 0.7", f"{ratio:.2f}")
    table.add("single enqueue, tasks/s", "-", f"{rate:,.0f}")
    for size in (1_000, 20_000):
        reset()
        calls = [((number,), {}) for number in range(size)]
        rates = [size / timed(lambda calls=calls: default_task_backend.enqueue_many(noop, calls)) for _ in range(5)]
        table.add(f"enqueue_many in calls of {size:,}, rows/s", "≥ 50 000", f"{median(rates):,.0f}")
    fresh = [_fresh() for _ in range(ROUNDS)]
    over = median(first - second for first, second in fresh)
    table.add(
        "first enqueue of a process over its second, ms (median, worst)",
        "≤ 20",
        f"{over:.1f}, {max(first - second for first, second in fresh):.1f}",
    )
