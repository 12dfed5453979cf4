"""Draining no-op tasks by one worker process with default settings, durable rows kept."""

from statistics import median

from bench import Table, process, reset
from bench_app.tasks import noop
from django.db import connection
from django.tasks import default_task_backend

ROUNDS = 3


def run(table: Table) -> None:
    """Take the time from the first start to the last completion, from the rows."""
    n = table.sized(10_000)
    rates = []
    for _ in range(ROUNDS):
        reset()
        default_task_backend.enqueue_many(noop, [((number,), {}) for number in range(n)])
        with process("runworker", "--burst") as worker:
            worker.wait(timeout=300)
        with connection.cursor() as cursor:
            cursor.execute(
                "SELECT count(*), EXTRACT(EPOCH FROM max(finished_at) - min(started_at))"
                " FROM queue_app_task WHERE status = 'completed'"
            )
            done, seconds = cursor.fetchone()
        assert done == n, f"{done} of {n} were completed"
        rates.append(n / float(seconds))
    table.add(f"drain of {n:,} no-op tasks by one runworker, tasks/s", "≥ 2 000", f"{median(rates):,.0f}")
