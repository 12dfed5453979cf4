"""The connections to PostgreSQL that a worker holds while its tasks use the database."""

import subprocess

from bench import Table, process, reset
from bench_app import tasks
from django.db import connection
from django.tasks import default_task_backend

SLOTS = 8
POOLS = {"threads": tasks.read, "processes": tasks.read, "async": tasks.aread}


def run(table: Table) -> None:
    """Count the connections while tasks run, and compare the first tenth of the tasks with all of them."""
    n = table.sized(10_000)
    for pool, task in POOLS.items():
        reset()
        default_task_backend.enqueue_many(task, [((number,), {}) for number in range(n)])
        early = late = 0
        with process("runworker", "--burst", "--pool", pool, "--concurrency", str(SLOTS)) as worker:
            while not _has_ended(worker):
                done, connections = _look()
                late = max(late, connections)
                if done <= n / 10:
                    early = late
        done, after = _look()
        assert done == n, f"{done} of {n} were completed"
        table.add(
            f"connections of a worker, {pool}, {SLOTS} slots: first tenth, all of {n:,} tasks, after its end",
            "the same, the same, 0",
            f"{early}, {late}, {after}",
        )


def _look() -> tuple[int, int]:
    """Return how many tasks are completed, and how many connections others have."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT (SELECT count(*) FROM queue_app_task WHERE status = 'completed'), (SELECT count(*)"
            " FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
            " AND backend_type = 'client backend')"
        )
        return cursor.fetchone()


def _has_ended(worker: subprocess.Popen[bytes]) -> bool:
    try:
        worker.wait(timeout=0.1)
    except subprocess.TimeoutExpired:
        return False
    return True
