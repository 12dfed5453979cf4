"""Draining by 1, 2, 4 and 8 worker processes: the rate, and which part of the system takes the processors."""

from contextlib import ExitStack

from bench import Table, process, rate_of_ended, reset
from bench_app.tasks import noop
from django.tasks import default_task_backend
from growth import postgresql_seconds, processor_seconds, valkey_seconds

from queue_app.models import Task, Worker
from queue_app.services.control.pause import pause_everything, resume_everything
from tests.support.waiting import let_pass, until

COUNTS = (1, 2, 4, 8)


def run(table: Table) -> None:
    """Let each number of workers start, and then drain the same tasks."""
    n = table.sized(20_000)
    try:
        for count in COUNTS:
            _drain(table, n, count)
    finally:
        resume_everything()


def _drain(table: Table, n: int, count: int) -> None:
    reset()
    pause_everything()
    default_task_backend.enqueue_many(noop, [((number,), {}) for number in range(n)])
    with ExitStack() as stack:
        pids = [stack.enter_context(process("runworker", "--concurrency", "8", "-q")).pid for _ in range(count)]
        until(lambda: Worker.objects.filter(status="active").count() == count, "they have started")
        let_pass(1)  # until they wait for calls
        before = _seconds(pids)
        resume_everything()
        until(lambda: not Task.objects.exclude(status="completed").exists(), "all are completed", 300)
        workers, postgresql, valkey = (now - was for now, was in zip(_seconds(pids), before, strict=True))
    rate = rate_of_ended(n)
    table.add(
        f"{count} workers of eight threads, {n:,} no-op tasks: tasks/s; µs a task: workers, PostgreSQL, Valkey",
        "-",
        f"{rate:,.0f}; " + ", ".join(f"{1e6 * seconds / n:.0f}" for seconds in (workers, postgresql, valkey)),
    )
    busy = (workers + postgresql + valkey) * rate / n
    share = f"{busy:.1f}; {valkey * rate / n:.0%}"
    table.add(f"{count} workers: cores in use; of the one core that Valkey can use", "-", share)


def _seconds(pids: list[int]) -> tuple[float, float, float]:
    """Return the processor time of the workers, of PostgreSQL and of Valkey so far."""
    postgresql, valkey = postgresql_seconds(), valkey_seconds()
    return processor_seconds(*pids) - postgresql - valkey, postgresql, valkey
