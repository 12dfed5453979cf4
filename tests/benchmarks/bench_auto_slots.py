"""Workers that find their number of slots, beside fixed numbers: tasks that end per second, and their slots."""

import time
from datetime import timedelta
from functools import partial

from bench import Table, process, reset
from bench_app import tasks
from django.utils import timezone

from queue_app.core.records import NewTask
from queue_app.models import Task, Worker
from queue_app.registry import type_of
from queue_app.services.enqueue.store import enqueue_many

WARM, MEASURED = 30, 15
#: (scene, pool, task, its parameter, number of tasks, fixed numbers, what is asked)
SCENES = (
    ("waiting 0.1 s, threads", "threads", tasks.lasts, 0.1, 60_000, (5, 20, 50), "≥ 0.9"),
    ("waiting 0.1 s, async", "async", tasks.awaits, 0.1, 250_000, (20, 100, 500), "≥ 0.9"),
    ("computing 20 ms, threads", "threads", tasks.computes, 0.02, 10_000, (1, 2, 5, 20), "≥ 0.9, no more than 2 slots"),
    ("computing 20 ms, processes", "processes", tasks.computes, 0.02, 40_000, (2, 4, 8, 16), "≥ 0.9, about 4 slots"),
)
MEGABYTES, BOUND = 40, 1500


def run(table: Table) -> None:
    """Run each scene with fixed numbers and with ``auto``; then tasks that would fill the memory."""
    for scene, pool, task, value, count, fixed, asked in SCENES:
        rates = {number: _rate(table, pool, str(number), task, value, count)[0] for number in fixed}
        best = max(rates, key=rates.__getitem__)
        rate, slots = _rate(table, pool, "auto", task, value, count)
        beside = ", ".join(f"{number}: {each:.0f}" for number, each in rates.items())
        got = f"{rate / rates[best]:.2f} ({rate:.0f}/s with {slots} slots; {beside})"
        table.add(f"{scene}: auto / best fixed number", asked, got)
    measure = partial(_rate, table, "threads", "auto:1-100", tasks.fills, MEGABYTES, 10_000, BENCH_MEMORY=str(BOUND))
    rate, slots = measure()
    most = BOUND * 0.88 / MEGABYTES
    table.add(f"{MEGABYTES} MB each in {BOUND} MB: slots", f"≤ {most:.0f}", f"{slots} ({rate:.0f}/s)")


def _rate(
    table: Table, pool: str, slots: str, task: object, value: float, count: int, **environment: str
) -> tuple[float, str]:
    """Return the tasks that ended per second, and the range of the slots at that time."""
    reset()
    for _ in range(0, count, 10_000):
        enqueue_many(NewTask(task_type=type_of(task), args=(value,)) for _ in range(table.sized(10_000)))
    with process("runworker", "--pool", pool, "--concurrency", slots, "--with-scheduler", **environment):
        time.sleep(WARM if slots.startswith("auto") else WARM / 3)
        since, seen = timezone.now(), set()
        while timezone.now() - since < timedelta(seconds=MEASURED):
            time.sleep(1)
            seen.add(Worker.objects.get().concurrency)
        if table.scale == 1:
            assert Task.objects.in_status("queued").exists(), "no task was left: the rate is too low"
        ended = Task.objects.filter(finished_at__gte=since, status="completed").count()
    return ended / MEASURED, str(min(seen)) if len(seen) == 1 else f"{min(seen)} to {max(seen)}"
