"""Tasks that the benchmarks run."""

import asyncio
import os
import threading
import time
from pathlib import Path

from django.contrib.auth import get_user_model
from django.tasks import TaskContext, task

from queue_app.workers import rlimits, slot_watch


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


@task
def lasts(seconds: float) -> None:
    """Wait for some seconds."""
    time.sleep(seconds)


@task
async def awaits(seconds: float) -> None:
    """Wait for some seconds without a thread."""
    await asyncio.sleep(seconds)


@task
def computes(seconds: float) -> None:
    """Use a core for some seconds, if nothing else uses it."""
    for _ in range(int(seconds * 20_000_000)):
        pass


@task
def fills(megabytes: float) -> None:
    """Hold memory for half a second."""
    held = bytearray(b"x" * int(megabytes * 1024**2))
    time.sleep(0.5)
    del held


if bound := os.environ.get("BENCH_MEMORY"):  # of a machine that has this number of MB for the worker
    slot_watch.memory = lambda: (rlimits.resident_bytes(os.getpid()) or 0, int(bound) * 1024**2)

_calls, _lock = 0, threading.Lock()


@task
def downstream() -> None:
    """Call a model service: 0.2 s up to the capacity in the file BENCH_CAPACITY, and beyond it longer by the square."""
    global _calls  # noqa: PLW0603 - all slots of the worker call the same service
    capacity = int(Path(os.environ["BENCH_CAPACITY"]).read_text(encoding="ascii"))
    with _lock:
        _calls += 1
        calls = _calls
    try:
        time.sleep(0.2 * max(1.0, calls / capacity) ** 2)
    finally:
        with _lock:
            _calls -= 1


@task
def read(number: int) -> int:
    """Ask the database for something."""
    return get_user_model().objects.filter(pk__lt=number).count()


@task
async def aread(number: int) -> int:
    """Ask the database for something, from a coroutine."""
    return await get_user_model().objects.filter(pk__lt=number).acount()


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
