"""Adaptive limits on a service with a knee (capacity 16), driven by a scheduler and a real worker of 100 slots."""

import tempfile
import time
from datetime import timedelta
from pathlib import Path
from statistics import mean

from bench import Table, process, reset
from bench_app.tasks import downstream
from django.utils import timezone

from queue_app.core.adaptive import ALGORITHM
from queue_app.core.records import NewTask
from queue_app.models import Limit, LimitStep, Task
from queue_app.registry import type_of
from queue_app.services.enqueue.store import enqueue_many

CAPACITY, SECONDS = 16, 0.2
BEST = CAPACITY / SECONDS
WARM, MEASURED, HALVED, RESTORED = 60, 30, 60, 120


def run(table: Table) -> None:
    """Measure a fixed limit of 100 and an adaptive one from 60 s on; then halve the capacity, and restore it."""
    path = Path(tempfile.mkdtemp()) / "capacity"
    for algorithm in ("", ALGORITHM):
        reset()
        LimitStep.objects.all().delete()
        path.write_text(str(CAPACITY), encoding="ascii")
        fields = {"max_concurrent": 100, "adaptive": algorithm, "min_concurrent": 2 if algorithm else None}
        Limit.objects.update_or_create(scope="type", name=type_of(downstream), defaults=fields)
        enqueue_many(NewTask(task_type=type_of(downstream)) for _ in range(table.sized(30_000)))
        with (
            process("runscheduler", BENCH_CAPACITY=str(path)),
            process("runworker", "--concurrency", "100", BENCH_CAPACITY=str(path)),
        ):
            time.sleep(WARM + MEASURED)
            rate, p95 = _measured(MEASURED)
            name = algorithm or "fixed 100"
            table.add(
                f"{name}, after 60 s: throughput / best, p95 / unloaded", "≥ 0.9, ≤ 1.5", f"{rate:.2f}, {p95:.1f}"
            )
            if algorithm:
                table.add(f"{name}, noise: values in the last 30 s", "-", _values(MEASURED))
                path.write_text(str(CAPACITY // 2), encoding="ascii")
                table.add(f"{name}, capacity halved: seconds to 10 or less", "≤ 30", _until(lambda v: v <= 10, HALVED))
                path.write_text(str(CAPACITY), encoding="ascii")
                table.add(f"{name}, restored: seconds to 15 or more", "≤ 120", _until(lambda v: v >= 15, RESTORED))
    Limit.objects.all().delete()


def _measured(seconds: float) -> tuple[float, float]:
    """Return throughput / best and p95 / unloaded of the last seconds."""
    since = timezone.now() - timedelta(seconds=seconds)
    ended = Task.objects.filter(finished_at__gte=since, status="completed").values_list("started_at", "finished_at")
    times = sorted((finished - started).total_seconds() for started, finished in ended)
    if not times:
        return 0.0, 0.0
    return len(times) / seconds / BEST, times[len(times) * 95 // 100] / SECONDS


def _values(seconds: float) -> str:
    values = [
        step.value for step in LimitStep.objects.filter(stepped_at__gte=timezone.now() - timedelta(seconds=seconds))
    ]
    return f"{min(values)} to {max(values)}, mean {mean(values):.1f}"


def _until(is_reached: object, most: float) -> str:
    began = time.monotonic()
    while time.monotonic() - began < most:
        time.sleep(1)
        if is_reached(LimitStep.objects.order_by("-at", "-id").first().value):
            return f"{time.monotonic() - began:.0f}"
    return f"not within {most:.0f}"
