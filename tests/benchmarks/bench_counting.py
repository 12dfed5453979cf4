"""What counting costs: draining with METRICS.ENABLED and without, in turn."""

from statistics import median

from bench import Table, drain, reset
from bench_app.tasks import noop
from django.tasks import default_task_backend

PAIRS = 7


def run(table: Table) -> None:
    """Compare the speed of one runworker."""
    n = table.sized(10_000)
    ratios = []
    for pair in range(PAIRS):
        rates = {on: _rate(n, on) for on in ((True, False) if pair % 2 else (False, True))}
        ratios.append(rates[True] / rates[False])
        print(f"  counted {rates[True]:,.0f} tasks/s, not counted {rates[False]:,.0f}", flush=True)
    table.add("drain of no-op tasks, counted / not counted", "≥ 0.97", f"{median(ratios):.3f}")


def _rate(n: int, counted: bool) -> float:
    reset()
    default_task_backend.enqueue_many(noop, [((number,), {}) for number in range(n)])
    return drain(n, TASKQUEUE__METRICS__ENABLED=str(counted))
