"""Without Redis (``INDEX = "rows"``): tasks a second, what a claim costs by what waits, pickup, and an idle worker.

Other queues that need PostgreSQL alone run in turn with this one by ``./dev bench peers --index rows``.
"""

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from statistics import median
from unittest.mock import patch

import bench_idle
import bench_pickup
from bench import Table, analyze, process, rate_of_ended, reset
from bench_app.tasks import noop
from bench_limits import fill_lanes, in_turn, lift, with_rows
from django.conf import settings
from django.test import override_settings

from queue_app.core.records import NewTask
from queue_app.models import Limit, Queue, RuntimeSettings
from queue_app.registry import type_of
from queue_app.services.enqueue.store import enqueue_many
from queue_app.services.repair.rebuild import rebuild

WORKERS, TASKS, ROUNDS = (1, 2, 4), 5_000, 5
TENANTS, LANES, WAITING = 10_000, 5_000, 1_000_000


def run(table: Table) -> None:
    """Measure without Redis, drains and claims of one kind in turn with those of the others."""
    with by_rows():
        try:
            _drains(table)
            _claims(table)
            bench_pickup.measure(table, "pickup when idle without Redis, called", "≤ 15 / - / ≤ 60")
            with patch.dict(os.environ, BENCH_POLLS="1"):
                bench_pickup.measure(table, "the same behind a pooler, polling", "-")
            bench_idle.watch(table, "worker without Redis", "≤ 0.2 %", "≤ one transaction a second", "runworker")
        finally:
            _lift_all()


@contextmanager
def by_rows() -> Iterator[None]:
    """Let this process and those it starts find tasks by the rows."""
    with (
        patch.dict(os.environ, BENCH_INDEX="rows"),
        override_settings(TASKQUEUE=settings.TASKQUEUE | {"INDEX": "rows"}),
    ):
        rebuild()
        yield
    rebuild()


def _drains(table: Table) -> None:
    n = table.sized(TASKS)
    rates: dict[str, list[float]] = {f"by {count} workers": [] for count in WORKERS} | {"ten": [], "ten, in force": []}
    for _ in range(ROUNDS):
        for count in WORKERS:
            rates[f"by {count} workers"].append(_drain(n, count))
        _ten_limits(n)
        rates["ten"].append(_drain(n, 2))
        _ten_limits(6)
        rates["ten, in force"].append(_drain(n // 2, 2))
        _lift_all()
    names = {"ten": "with ten limits that hold nothing up, by 2 workers", "ten, in force": "with six slots for all"}
    for what, found in rates.items():
        asked = {"by 2 workers": "≥ 1 000", "ten": "≥ 300", "ten, in force": "≥ 300"}.get(what, "-")
        table.add(f"drain without Redis {names.get(what, what)}, tasks/s", asked, f"{median(found):,.0f}")


def _drain(n: int, workers: int) -> float:
    """Return the tasks a second of so many worker processes; all tasks have a user and a key."""
    reset()
    enqueue_many(
        NewTask(
            task_type=type_of(noop), args=[number], user=f"user{number % 50}", concurrency_key=f"customer:{number % 20}"
        )
        for number in range(n)
    )
    analyze()
    with ExitStack() as stack:
        for worker in [stack.enter_context(process("runworker", "--burst")) for _ in range(workers)]:
            worker.wait(timeout=300)
    return rate_of_ended(n)


def _ten_limits(slots: int) -> None:
    """Set ten limits: of everything, a queue, its users, a type, a key family and a key; and rates of four of them."""
    _lift_all()
    rate = {"rate_count": 1_000_000, "rate_seconds": 1.0}
    RuntimeSettings.objects.update(max_concurrent=slots)
    Queue.objects.filter(pk="default").update(max_concurrent=slots, max_concurrent_per_user=slots, **rate)
    Limit.objects.create(scope="type", name=type_of(noop), max_concurrent=slots, **rate)
    Limit.objects.create(scope="key", name="customer", max_concurrent=slots, **rate)
    Limit.objects.create(scope="key", name="customer:1", max_concurrent=slots, **rate)
    rebuild()


def _claims(table: Table) -> None:
    """Compare claims among many of one kind with those of a worker whose one lane has 5 000 tasks."""
    scenes: dict[str, tuple[dict[str, object], Callable[[int], dict[str, object]], int, int]] = {
        "1 000 000 waiting": ({}, lambda _: {}, WAITING, 1),
        "5 000 lanes": ({}, lambda number: {"concurrency_key": f"key{number % table.sized(LANES)}"}, 50_000, 1),
        "5 000 keys, each with a cap": ({}, lambda number: {"concurrency_key": f"many:{number % LANES}"}, 50_000, 1),
        "10 000 users, each with a cap": ({"max_concurrent_per_user": 5}, _user_of(table.sized(TENANTS)), 50_000, 1),
        "10 000 users in turn": ({"order": "fair"}, _user_of(table.sized(TENANTS)), 50_000, 1),
        "50 queues of 200 users in turn": ({"order": "fair"}, _user_of(table.sized(TENANTS)), 50_000, 50),
    }
    for name, (fields, options, n, queues) in scenes.items():
        reset()
        _lift_all()
        if "keys" in name:
            Limit.objects.create(scope="key", name="many", max_concurrent=50)
        names = [f"limited{number}" for number in range(queues)]
        for queue in names:
            Queue.objects.create(name=queue, **fields)
        rebuild()
        plain = fill_lanes(table.sized(5_000), ["default"], "bench.plain", lambda _: {})
        limited = fill_lanes(table.sized(n), names, "bench.limited", options)
        analyze()
        table.add(f"claim without Redis, {name} / one lane", "-", in_turn(with_rows, plain, limited))


def _user_of(users: int) -> Callable[[int], dict[str, object]]:
    return lambda number: {"user": f"user{number % users}"}


def _lift_all() -> None:
    Queue.objects.filter(name__startswith="limited").delete()
    lift()
