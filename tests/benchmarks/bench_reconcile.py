"""What it costs to compare a million queued rows with the index, all being well."""

import time

from bench import Table, analyze, fill
from growth import backend_seconds, valkey_seconds

from queue_app import conf
from queue_app.services.repair.reconcile import Reconciler


def run(table: Table) -> None:
    """Run the rolling pass once from end to end, and spread its processor time over the period it is given."""
    n = table.sized(1_000_000)
    fill(n, types=10)
    analyze()
    reconciler = Reconciler()
    settings = conf.get().scheduler
    valkey, postgresql = valkey_seconds(), backend_seconds()
    own, began, steps, slowest = time.process_time(), time.perf_counter(), 0, 0.0
    while steps == 0 or reconciler.cursor is not None:
        at = time.perf_counter()
        assert not any(reconciler.run_once().values())
        slowest = max(slowest, time.perf_counter() - at)
        steps += 1
    seconds = time.perf_counter() - began
    cost = {
        "scheduler": time.process_time() - own,
        "valkey": valkey_seconds() - valkey,
        "postgres": backend_seconds() - postgresql,
    }
    parts = ", ".join(f"{name} {spent / settings.full_pass_seconds:.2%}" for name, spent in cost.items())
    print(
        f"  {n:,} rows in {steps} steps, {seconds:.2f} s on the clock, the longest step {slowest * 1e3:.0f} ms",
        flush=True,
    )
    period = f"one pass in {settings.full_pass_seconds:.0f} s"
    table.add(
        f"reconcile of {n:,} queued rows, {period}, share of a core",
        "≤ 1 %",
        f"{sum(cost.values()) / settings.full_pass_seconds:.2%} ({parts})",
    )
