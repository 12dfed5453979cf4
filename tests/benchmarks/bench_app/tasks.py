"""Tasks that the benchmarks run."""

import os
import time

from django.tasks import TaskContext, task


@task
def noop(number: int) -> None:
    """Do nothing."""


@task
def mark(number: int) -> None:
    """Append the number and the monotonic time to the file that BENCH_LOG names."""
    now = time.monotonic_ns()
    with open(os.environ["BENCH_LOG"], "a", encoding="ascii") as log:  # noqa: PTH123 - the shortest way in
        log.write(f"{number} {now}\n")


@task(takes_context=True)
def ordinary(context: TaskContext, number: int, note: str) -> dict[str, object]:
    """Return something small; one in a hundred fails at its first attempt, one in a thousand always."""
    if number % 1000 == 0 or (number % 100 == 0 and context.attempt == 1):
        raise ValueError(f"no {number}")
    return {"number": number, "words": len(note.split())}


def _number(number: int) -> int:
    return number


@task(takes_context=True)
def ten_steps(context: TaskContext, atomic: bool, number: int) -> int:
    """Add the results of ten steps."""
    return sum(context.step(f"step {each}", _number, number + each, atomic=atomic) for each in range(10))


@task(takes_context=True)
def plain_functions(context: TaskContext, number: int) -> int:
    """Do the same without steps."""
    return sum(_number(number + each) for each in range(10))
