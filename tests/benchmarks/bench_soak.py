"""A million tasks through the whole system with retention on: do sizes level off, and does it slow down?

Two workers, a scheduler that does the upkeep, and a producer that keeps a few thousand tasks waiting. Retention is so
short that almost all of the tasks are deleted again within the run, as they are in a system that has run for weeks.
"""

import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import batched

import psutil
from bench import Table, process, reset
from growth import MB, ask, ordinary_tasks, processor_seconds, resident, sizes, upkeep, valkey_memory, wal

from queue_app.index import get_index
from queue_app.services.enqueue.store import enqueue_many
from queue_app.sql.upkeep import count_purgeable
from tests.support.waiting import let_pass, until

TASKS, PARTS = 1_000_000, 10
BATCH, WAITING = 500, 5_000
KEEP = {"SUCCESS": 30, "FAILURE": 60, "DEAD_LETTER": 60, "IDEMPOTENCY": 30, "WORKER": 600}
ENVIRONMENT = {f"TASKQUEUE__RETENTION__{name}_SECONDS": str(value) for name, value in KEEP.items()} | {
    "TASKQUEUE__SCHEDULER__MAINTENANCE_SECONDS": "5"
}
COLUMNS = (
    "tasks", "tasks/s", "µs/task", "task rows", "task heap MB", "task indexes MB", "payload MB", "payload indexes MB",
    "result MB", "other MB", "dead rows", "past retention", "vacuums", "HOT %", "WAL MB", "Valkey MB", "workers MB",
    "scheduler MB",
)  # fmt: skip


@dataclass
class Soak:
    """The running system."""

    workers: list[int]
    scheduler: int
    size: int
    done: int = 0

    def part(self) -> list[str]:
        """Send one part through, and return its line of the table."""
        wal_before, (_, vacuums, hot, updates) = wal(), upkeep()
        used, began = processor_seconds(*self.workers, self.scheduler), time.perf_counter()
        for some in batched(ordinary_tasks(self.done, self.size), BATCH, strict=False):
            until_at_most(WAITING)
            enqueue_many(some)
        until_at_most(0)
        rate = self.size / (time.perf_counter() - began)
        used = processor_seconds(*self.workers, self.scheduler) - used
        self.done += self.size
        written, (dead, runs, hot_now, updates_now) = wal() - wal_before, upkeep()
        found = sizes()
        task, payload = found.pop("queue_app_task"), found.pop("queue_app_taskpayload")
        result = found.pop("queue_app_taskresult")
        share = 100 * (hot_now - hot) / max(1, updates_now - updates)
        rows = ask("SELECT count(*) FROM queue_app_task")[0][0]
        late = count_purgeable(KEEP["SUCCESS"], KEEP["FAILURE"], KEEP["IDEMPOTENCY"])
        memory = [valkey_memory(), sum(map(resident, self.workers)), resident(self.scheduler)]
        bytes_ = [task.heap, task.indexes, payload.heap + payload.toast, payload.indexes, result.total]
        bytes_.append(sum(size.total for size in found.values()))
        return [
            f"{self.done:,}", f"{rate:,.0f}", f"{used / self.size * 1e6:.0f}", f"{rows:,}",
            *(f"{size / MB:,.1f}" for size in bytes_), f"{dead:,}", f"{late:,}", str(runs - vacuums),
            f"{share:.1f}", f"{written / MB:,.0f}", *(f"{mb:.0f}" for mb in memory),
        ]  # fmt: skip


def until_at_most(waiting: int) -> None:
    """Wait until at most ``waiting`` tasks wait or run."""
    until(lambda: sum(q.total + q.active for q in get_index().stats().queues) <= waiting, "they end", 3600)


@contextmanager
def soaking(size: int) -> Iterator[Soak]:
    """Start the system; each part has ``size`` tasks."""
    reset()
    with ExitStack() as stack:
        scheduler = stack.enter_context(process("runscheduler", "--with-maintenance", **ENVIRONMENT))
        workers = [stack.enter_context(process("runworker", **ENVIRONMENT)) for _ in range(2)]
        let_pass(3)
        assert all(psutil.pid_exists(each.pid) for each in (scheduler, *workers))
        yield Soak([each.pid for each in workers], scheduler.pid, size)


def run(table: Table) -> None:
    """Print what each part leaves behind; compare the last one with one on empty tables, right after it."""
    size = table.sized(TASKS // PARTS)
    with soaking(size) as soak:
        lines = [printed(soak.part()) for _ in range(PARTS)]
    with soaking(size) as fresh:
        lines.append(printed(fresh.part()))
    report(table, lines)


def printed(line: list[str]) -> list[str]:
    """Print one line of the table, with its names, and return it."""
    print("  " + ", ".join(f"{name} {value}" for name, value in zip(COLUMNS, line, strict=True)), flush=True)
    return line


def report(table: Table, lines: list[list[str]]) -> None:
    """Print the parts, and add the figures; the last line is of empty tables."""
    print("\n".join(f"| {' | '.join(line)} |" for line in [list(COLUMNS), ["---"] * len(COLUMNS), *lines]))

    def number(line: list[str], column: str) -> float:
        return float(line[COLUMNS.index(column)].replace(",", ""))

    *parts, fresh = lines
    for name, other in (("the first", parts[0]), ("one on empty tables, right after it", fresh)):
        for column in ("tasks/s", "µs/task"):
            ratio = number(parts[-1], column) / number(other, column)
            table.add(f"{parts[-1][0]} tasks, {column}: the last tenth / {name}", "1", f"{ratio:.2f}")
    for column in ("task heap MB", "task indexes MB", "payload MB", "payload indexes MB", "result MB", "Valkey MB"):
        middle = max(number(line, column) for line in parts[3:7])
        end = max(number(line, column) for line in parts[7:])
        table.add(f"{column}: last three tenths / the four before", "≤ 1.1", f"{end / middle:.2f} ({end:.0f})")
