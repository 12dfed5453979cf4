"""Tasks that workers run inside the process of the tests."""

import asyncio
import logging
import os
import signal
import threading
import time
from collections import UserDict, defaultdict
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Literal

from django.db import ProgrammingError
from django.tasks import task

from queue_app.exceptions import Discard, Retry, Snooze

begun: dict[str, threading.Event] = defaultdict(threading.Event)
gates: dict[str, threading.Event] = defaultdict(threading.Event)
calls: list[object] = []


@task
def quick(number: int = 0) -> None:
    """Remember the call."""
    calls.append(number)


@task
def slow(number: int = 0) -> None:
    """Do the same as ``quick``, as another type."""
    calls.append(number)


@task
def typed(count: int, mode: Literal["fast", "slow"], note: str = "none", options: list[int] | None = None) -> object:
    """Return what it was given."""
    return [count, mode, note, options]


@task
def echo(value: object) -> object:
    """Return the value."""
    return value


@task
def hold(name: str) -> str:
    """Record the start, and wait until the test opens the gate."""
    begun[name].set()
    assert gates[name].wait(30)
    return name


@task
def returns(kind: str) -> object:
    """Return a value that JSON converts or refuses."""
    return {
        "tuple": (1, (2, 3)),
        "none": None,
        "object": threading.Lock(),
        "set": {"deep": [1, {2}]},
        "nan": float("nan"),
        "large": "x" * 300_000,
        "nul": "a\x00b",
        "surrogate": "\ud800",
        "unicode": "größer ✓",
        "bytes": b"raw",
        "deep bytes": {"a": [b"raw", range(2), UserDict(b=1)]},
        "binary": b"\xff",
        "key": {1: 2},
        "deep key": {"a": [{1: 2}]},
        "key in a list": [{1: 2}],
        "key beside bytes": [b"raw", {1: 2}],
    }[kind]


class SilentError(Exception):
    """Has no printable message."""

    def __str__(self) -> str:
        raise SystemExit("not even this")


@task
def raises(kind: str) -> None:
    """Raise something."""
    raise {
        "value": ValueError("no good"),
        "nul": ValueError("a\x00b"),
        "surrogate": ValueError("\ud800"),
        "long": ValueError("x" * 10_000_000),
        "silent": SilentError(),
        "exit": SystemExit(3),
        "interrupt": KeyboardInterrupt(),
        "group": ExceptionGroup("several", [ValueError("one"), KeyError("two")]),
    }[kind]


@task
def deep(levels: int) -> None:
    """Recurse until Python refuses."""
    deep.call(levels + 1)


@task(takes_context=True)
def looks(context) -> list[object]:
    """Return the contents of the context."""
    result = context.task_result
    return [context.attempt, result.id, result.status.value, len(result.worker_ids)]


@task
async def later(value: int) -> int:
    """Return a number from an event loop."""
    return value * 2


@task
async def leaves() -> None:
    """Raise an exception that ends event loops."""
    raise SystemExit(4)


@task
def spin(name: str) -> None:
    """Run Python code until interrupted; record whether it could clean up."""
    begun[name].set()
    try:
        while True:
            with suppress(Exception):  # an interruption is none, and passes
                sum(range(100))
    finally:
        calls.append(f"cleaned up {name}")


@task
def fail_to_roll_back(name: str, path: str = "") -> None:
    """Run until interrupted, or until the gate is open; then fail as ``atomic()`` does in the middle of a query."""
    try:
        begun[name].set()
        if path:
            Path(path).write_text(str(os.getpid()))
        # No exception table covers the jump back of ``while not …:``: an interruption there would skip ``finally``.
        while True:
            sum(range(100))
            if gates[name].is_set():
                break
    finally:
        raise ProgrammingError("can't change 'autocommit' now: connection in transaction status ACTIVE")


@task
async def fail_to_roll_back_later(name: str, path: str) -> None:
    """Do the same as a coroutine."""
    try:
        Path(path).write_text(name)  # noqa: ASYNC240 - a few bytes
        await asyncio.sleep(60)
    finally:
        raise ProgrammingError("can't change 'autocommit' now: connection in transaction status ACTIVE")


@task
def control(kind: str) -> None:
    """Raise a control exception of this kind."""
    raise {
        "retry": Retry("not yet", after=7),
        "retry_by_backoff": Retry("not yet"),
        "discard": Discard("no use"),
        "snooze": Snooze(30),
    }[kind]


@task
def whoami() -> int:
    """Return the process that runs it."""
    return os.getpid()


@task
def dies() -> None:
    """End its process as the system does when memory runs out."""
    os.kill(os.getpid(), signal.SIGKILL)


def tell_and_wait(path: str) -> None:
    """Write the process id, and wait outside of Python until something ends it."""
    Path(path).write_text(str(os.getpid()), encoding="utf-8")
    time.sleep(600)


@task
def blocks(path: str) -> None:
    """Wait outside of Python."""
    tell_and_wait(path)


@task
def resists(path: str) -> None:
    """Wait, and swallow every exception."""
    while True:
        with suppress(BaseException):  # an interruption may come as soon as the id can be read
            tell_and_wait(path)


@task
def opens(count: int) -> None:
    """Open ``count`` files."""
    with ExitStack() as stack:
        for _ in range(count):
            stack.enter_context(Path(os.devnull).open("rb"))


@task
def eats(megabytes: int) -> None:
    """Take memory, and keep it for a while."""
    food = bytearray(megabytes * 1024**2)
    food[::4096] = b"x" * len(food[::4096])
    tell_and_wait(os.devnull)


@task(takes_context=True)
def tells(context) -> str:
    """Report progress, a log line and an extension."""
    context.progress(0.5, "half")
    logging.getLogger("shop").warning("a line", extra={"task_id": "its own"})
    context.extend(60)
    return "reported"


@task
async def alate(name: str) -> str:
    """Wait on the event loop until the test opens the gate."""
    while not gates[name].is_set():  # noqa: ASYNC110 - the gate is opened by another thread
        await asyncio.sleep(0.005)
    return name


@task
async def ablocks(name: str) -> None:
    """Block the event loop until the test opens the gate."""
    begun[name].set()
    gates[name].wait(30)


@task
def naps(seconds: float) -> None:
    """Wait for a moment."""
    time.sleep(seconds)


@task
async def anaps(seconds: float) -> None:
    """Wait for a moment, on the event loop."""
    await asyncio.sleep(seconds)


@task
async def stalls(seconds: float) -> None:
    """Block the event loop for a moment."""
    time.sleep(seconds)  # noqa: ASYNC251 - that is the point
