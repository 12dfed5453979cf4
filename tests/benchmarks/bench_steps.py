"""Durable steps: tasks of ten steps each on one worker process with eight slots; beside tasks that call functions."""

from statistics import median

from bench import Table, drain, peer_rates, reset
from bench_app.tasks import plain_functions, ten_steps
from django.db import connection
from django.tasks import default_task_backend

ROUNDS = 3
STEPS = 10
TASKS = 500


def run(table: Table) -> None:
    """Take the time from the first start to the last completion, from the rows, in turn."""
    n = table.sized(TASKS)
    rates: dict[str, list[float]] = {"steps": [], "atomic steps": [], "plain functions": []}
    peer: list[float] = []
    for _ in range(ROUNDS):
        for name, found in rates.items():
            task, arguments = (plain_functions, ()) if name == "plain functions" else (ten_steps, (name != "steps",))
            found.append(STEPS * _drain(task, arguments, n))
        peer += [rate for what, rate in peer_rates("dbos").items() if what == "steps"]
    plain, atomic, functions = (median(found) for found in rates.values())
    table.add(f"{n} tasks of {STEPS} durable steps, 8 slots, steps/s", "≥ 5 times DBOS in one run", f"{plain:,.0f}")
    if peer:
        table.add(
            f"durable steps: times DBOS, which has {median(peer):,.0f} steps/s", "≥ 5", f"{plain / median(peer):.1f}"
        )
    table.add(f"{n} tasks of {STEPS} atomic steps, 8 slots, steps/s", "no figure", f"{atomic:,.0f}")
    table.add(f"{n} tasks that call {STEPS} functions, calls/s", "no figure", f"{functions:,.0f}")


def _drain(task, arguments, n: int) -> float:
    reset()
    with connection.cursor() as cursor:
        cursor.execute("TRUNCATE queue_app_stepresult")
    default_task_backend.enqueue_many(task, [((*arguments, number), {}) for number in range(n)])
    return drain(n, "--concurrency", "8")
