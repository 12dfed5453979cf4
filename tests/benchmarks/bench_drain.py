"""Draining no-op tasks by one worker process with default settings, durable rows kept."""

from statistics import median

from bench import Table, drain, reset
from bench_app.tasks import noop
from django.tasks import default_task_backend

ROUNDS = 3


def run(table: Table) -> None:
    """Drain several times."""
    n = table.sized(10_000)
    rates = []
    for _ in range(ROUNDS):
        reset()
        default_task_backend.enqueue_many(noop, [((number,), {}) for number in range(n)])
        rates.append(drain(n))
    table.add(f"drain of {n:,} no-op tasks by one runworker, tasks/s", "≥ 2 000", f"{median(rates):,.0f}")
