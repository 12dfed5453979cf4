"""How soon an idle worker enters the function, from the return of the enqueue call."""

import tempfile
import time
from pathlib import Path

from bench import Table, process
from bench_app.tasks import mark

from tests.support.waiting import let_pass, until

COUNT = 400
GAP_SECONDS = 0.025


def run(table: Table) -> None:
    """Measure a worker that Redis calls."""
    measure(table, "pickup when idle", "≤ 5 / - / ≤ 25")


def measure(table: Table, what: str, asked: str) -> None:
    """Enqueue one task every 25 ms."""
    log = Path(tempfile.mkdtemp()) / "log"
    log.touch()
    returned: dict[int, int] = {}
    with process("runworker", BENCH_LOG=str(log)):
        _wait_for(log, lambda: mark.enqueue(-1), 1)
        for number in range(COUNT):
            mark.enqueue(number)
            returned[number] = time.monotonic_ns()
            let_pass(GAP_SECONDS)
        _wait_for(log, lambda: None, COUNT + 1)
    entered = dict(map(int, line.split()) for line in log.read_text().splitlines())
    delays = sorted((entered[number] - returned[number]) / 1e6 for number in returned)
    p50, p95, p99 = (delays[int(COUNT * share)] for share in (0.5, 0.95, 0.99))
    table.add(f"{what}, ms: p50 / p95 / p99", asked, f"{p50:.2f} / {p95:.2f} / {p99:.2f}")


def _wait_for(log: Path, start: object, lines: int) -> None:
    start()
    until(lambda: len(log.read_text().splitlines()) >= lines, f"the worker ran {lines} tasks", 30)
