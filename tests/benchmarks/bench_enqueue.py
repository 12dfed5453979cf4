"""Enqueueing: one by one against a bare INSERT loop, and many at once."""

import json
import os
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


def run(table: Table) -> None:
    """Measure single enqueues in turn with bare inserts, then the bulk call."""
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
