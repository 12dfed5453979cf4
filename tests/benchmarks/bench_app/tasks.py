"""Tasks that the benchmarks run."""

import os
import time

from django.tasks import task


@task
def noop(number: int) -> None:
    """Do nothing."""


@task
def mark(number: int) -> None:
    """Append the number and the monotonic time to the file that BENCH_LOG names."""
    now = time.monotonic_ns()
    with open(os.environ["BENCH_LOG"], "a", encoding="ascii") as log:  # noqa: PTH123 - the shortest way in
        log.write(f"{number} {now}\n")
