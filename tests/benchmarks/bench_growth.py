"""What a million tasks cost in PostgreSQL: bytes kept, WAL written and time, from the enqueue to the purge."""

import time
from collections.abc import Callable
from itertools import batched

from bench import Table, process, reset
from bench_soak import BATCH, until_at_most
from django.db import connection
from django.test import override_settings
from growth import MB, ask, index_sizes, ordinary_tasks, sizes, wal

from queue_app.services.enqueue.store import enqueue_many
from queue_app.services.upkeep.maintenance import purge
from tests.support.waiting import let_pass

TASKS, MILLION = 200_000, 1_000_000
TABLES = ("queue_app_task", "queue_app_taskpayload", "queue_app_taskresult")


def run(table: Table) -> None:
    """Take each step with ``TASKS`` tasks, and scale the figures to a million."""
    reset()
    n = table.sized(TASKS)
    factor = MILLION / n

    def step(name: str, action: Callable[[], object]) -> None:
        written, began = wal(), time.perf_counter()
        action()
        seconds, written = time.perf_counter() - began, wal() - written
        table.add(
            f"{name}: WAL, time, of a million", "-", f"{written * factor / MB:,.0f} MB, {seconds * factor:,.0f} s"
        )

    def kept(when: str) -> None:
        found = sizes()
        for name in TABLES:
            size = found[name]
            parts = (
                f"rows {(size.heap + size.toast) * factor / MB:,.0f} MB, indexes {size.indexes * factor / MB:,.0f} MB"
            )
            table.add(f"{name} {when}, of a million", "-", parts)

    step("enqueue", lambda: [enqueue_many(some) for some in batched(ordinary_tasks(0, n), BATCH, strict=False)])
    kept("when queued")
    with process("runscheduler"), process("runworker"), process("runworker"):
        step("claim and finish", lambda: until_at_most(0))
        let_pass(3)  # the retries
        until_at_most(0)
    kept("when ended")
    for name, size in index_sizes(*TABLES).items():
        table.add(f"index {name}, of a million", "-", f"{size * factor / MB:,.0f} MB")
    step("vacuum", _vacuum)
    keep_nothing = {f"{name}_SECONDS": 0.01 for name in ("SUCCESS", "FAILURE", "IDEMPOTENCY")}
    with override_settings(TASKQUEUE={"REDIS_ALIAS": "default", "RETENTION": keep_nothing}):
        step("purge", lambda: purge(seconds=600))
    left = ask("SELECT count(*) FROM queue_app_task WHERE status <> 'dead_letter'")[0][0]
    assert left == 0, f"{left} tasks were not purged"
    step("vacuum after it", _vacuum)
    kept("after purge and vacuum")


def _vacuum() -> None:
    with connection.cursor() as cursor:
        for name in TABLES:
            cursor.execute(f"VACUUM ANALYZE {name}")
