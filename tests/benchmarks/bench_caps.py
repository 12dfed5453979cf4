"""What a limit that holds costs: draining no-op tasks by two workers of eight threads, with and without it, in turn."""

import os
from contextlib import ExitStack
from statistics import median

from bench import Table, process, rate_of_ended, reset
from bench_app.tasks import noop

from queue_app.core.records import NewTask
from queue_app.models import Limit, Queue, Task
from queue_app.registry import type_of
from queue_app.services.enqueue.store import enqueue_many
from queue_app.services.repair.rebuild import rebuild
from tests.support.waiting import until

ROUNDS = 4

#: Name, fields of the queue, and whether each of 100 keys is limited to one task at a time.
SCENES: dict[str, tuple[dict[str, object], bool]] = {
    "max_concurrent 10": ({"max_concurrent": 10}, False),
    "a rate of 1 000/s": ({"rate_count": 1000, "rate_seconds": 1.0, "rate_burst": 100}, False),
    "a cap of 1 for each of 100 keys": ({}, True),
    "a cap of 1 for each of 100 users": ({"max_concurrent_per_user": 1}, False),
}


def run(table: Table) -> None:
    """Measure each scene in turn with the plain one."""
    wanted = os.environ.get("CAPS", "").split(",")
    for name, (fields, keys) in SCENES.items():
        if wanted != [""] and not any(part in name for part in wanted):
            continue
        n = table.sized(10_000)
        plain, limited = [], []
        for _ in range(ROUNDS):
            plain.append(_rate(n, {}, keys=False))
            limited.append(_rate(n, fields, keys=keys))
        if "rate_count" in fields:
            reached = median(limited) / 1000
            table.add(f"drain with {name}: part of the rate that is reached", "≥ 0.98", f"{reached:.3f}")
        else:
            ratio = median(a / b for a, b in zip(limited, plain, strict=True))
            rates = f"{median(limited):,.0f} / {median(plain):,.0f} tasks/s"
            table.add(f"drain with {name} / without", "≥ 0.6, 4 000 tasks/s", f"{ratio:.2f} ({rates})")


def _rate(n: int, fields: dict[str, object], *, keys: bool) -> float:
    """Return the tasks a second from the first start to the last end."""
    reset()
    Limit.objects.all().delete()
    Queue.objects.filter(pk="default").delete()
    Queue.objects.create(name="default", **fields)  # type: ignore[misc]
    if keys:
        Limit.objects.create(scope="key", name="account", max_concurrent=1)
    rebuild()
    enqueue_many(
        NewTask(
            task_type=type_of(noop),
            args=[number],
            user=f"user{number % 100}",
            concurrency_key=f"account:{number % 100}",
        )
        for number in range(n)
    )
    with ExitStack() as stack:
        for _ in range(2):
            stack.enter_context(process("runworker", "--concurrency", "8", "-q"))
        until(lambda: not Task.objects.exclude(status="completed").exists(), "all are completed", 300)
    rate = rate_of_ended(n)
    Queue.objects.filter(pk="default").update(
        max_concurrent=None, max_concurrent_per_user=None, rate_count=None, rate_seconds=None, rate_burst=None
    )
    Limit.objects.all().delete()
    return rate
