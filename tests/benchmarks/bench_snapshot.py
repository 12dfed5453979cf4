"""The queries of the scheduler, and claims, while one transaction keeps an old snapshot open.

All figures are processor time of PostgreSQL.
"""

import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from statistics import median

import psycopg
from bench import Table, analyze, fill, register
from django.db import connection
from growth import backend_seconds

from queue_app.core.records import WorkerReport
from queue_app.index import Profile
from queue_app.services.lifecycle.claim import claim
from queue_app.services.worker import registration as workers
from queue_app.services.worker.registration import WorkerIdentity
from queue_app.sql import workers as worker_rows
from queue_app.workers.scheduler import Scheduler
from tests.support.waiting import let_pass

TASKS = 1_000_000
PAGE = 10_000
#: Turns of the scheduler, one each second; each slow query runs once within the first ones, and then pauses.
FIRST_TURNS = 10
TURNS = 50
#: After this time no task that ran belongs to those that the reconciler compares in each of its turns.
SETTLE_SECONDS = 31
CLAIMS = 400

# What a claim and a finish change, for many tasks in one statement.
_START = """
UPDATE queue_app_task SET status = 'executing', attempt = attempt + 1, worker_id = %s, started_at = clock_timestamp(),
    deadline = clock_timestamp() + interval '10 minutes', leased_at = 1 WHERE id = ANY(%s)
"""
_END = """
UPDATE queue_app_task SET status = 'completed', finished_at = clock_timestamp(), deadline = NULL WHERE id = ANY(%s)
"""
_NEW = """
INSERT INTO queue_app_task (id, task_type, queue, status, priority, capabilities, "user", attempt, failures, created_at,
    queued_at)
SELECT gen_random_uuid(), 'bench.type0', 'default', 'queued', 2, '{{}}', '', 0, 0, clock_timestamp(), clock_timestamp()
FROM generate_series(1, {page}) RETURNING id
"""


def run(table: Table) -> None:
    """Measure without a snapshot, run tasks behind an open one, and measure again."""
    tasks = table.sized(TASKS)
    profile, worker_id = register()
    identity = WorkerIdentity(id=worker_id, name="w", host="h", pid=0, process_identity="remote", version="1")
    workers.register(identity, profile, concurrency=10, heartbeat_seconds=600)
    worker_rows.heartbeat(worker_id, WorkerReport(free_slots=10))  # so the watchdog asks for waiting tasks
    fill(10 * CLAIMS)
    analyze()
    before = _claim_seconds(profile, worker_id)
    with _open_snapshot():
        _run_tasks(tasks, worker_id)
        let_pass(SETTLE_SECONDS)
        turns = _turns()
        fill(10 * CLAIMS)
        after = _claim_seconds(profile, worker_id)
    what = f"after {tasks:,} tasks under one snapshot"
    first, later = turns[:FIRST_TURNS], sorted(turns[FIRST_TURNS:])
    table.add(
        f"turn of the scheduler {what}, ms: median, p95",
        "≤ 5",
        f"{_ms(median(later))}, {_ms(later[int(len(later) * 0.95)])}",
    )
    table.add(f"queries of all {what}, which then pause for 100 times as long, ms together", "-", _ms(sum(first)))
    table.add(f"CPU of PostgreSQL a claim of 10 {what} / before it", "≤ 1.1", f"{after / before:.2f}")


@contextmanager
def _open_snapshot() -> Iterator[None]:
    with psycopg.connect(os.environ["DATABASE_URL"]) as raw:
        raw.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        raw.execute("SELECT count(*) FROM queue_app_queue")
        yield


def _run_tasks(tasks: int, worker_id: uuid.UUID) -> None:
    with connection.cursor() as cursor:
        for _ in range(tasks // PAGE):
            cursor.execute(_NEW.format(page=PAGE))
            ids = [row[0] for row in cursor.fetchall()]
            cursor.execute(_START, [worker_id, ids])
            cursor.execute(_END, [ids])


def _turns() -> list[float]:
    """Return what each turn of a scheduler took, one each second."""
    scheduler, seconds = Scheduler(), []
    for _ in range(TURNS):
        before = backend_seconds()
        scheduler.run_once()
        seconds.append(backend_seconds() - before)
        let_pass(1.0)
    return seconds


def _claim_seconds(profile: Profile, worker_id: uuid.UUID) -> float:
    """Return the processor time that PostgreSQL takes for claims."""
    before = backend_seconds()
    for _ in range(CLAIMS):
        assert len(claim(profile, worker_id, 10)) == 10
    return backend_seconds() - before


def _ms(seconds: float) -> str:
    return f"{seconds * 1000:.1f}"
