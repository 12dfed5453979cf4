"""Draining no-op tasks by one worker process with default settings, durable rows kept."""

from statistics import median

from bench import Table, drain, reset
from bench_app.tasks import noop
from django.tasks import default_task_backend
from growth import postgresql_seconds

ROUNDS = 3


def run(table: Table) -> None:
    """Drain several times."""
    n = table.sized(10_000)
    rates, used = [], []
    for _ in range(ROUNDS):
        reset()
        default_task_backend.enqueue_many(noop, [((number,), {}) for number in range(n)])
        used.append(-postgresql_seconds())
        rates.append(drain(n))
        used[-1] += postgresql_seconds()
    table.add(f"drain of {n:,} no-op tasks by one runworker, tasks/s", "≥ 2 000", f"{median(rates):,.0f}")
    each = median(used) / n * 1e6
    table.add("processor time of PostgreSQL for such a task, µs", "-", f"{each:.0f}")
