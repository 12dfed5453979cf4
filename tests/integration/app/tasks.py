"""Tasks whose side effects go to a file that is opened for appending, one short line a write."""

import asyncio
import ctypes
import inspect
import logging
import os
import signal
import sys
import time
from pathlib import Path

from django.db import connection

from queue_app import task
from queue_app.exceptions import Discard, Throttle
from tests.support.waiting import until


def write(log: str, line: str) -> None:
    """Append a line; one write of less than a page is not torn by others."""
    descriptor = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    try:
        os.write(descriptor, f"{line}\n".encode())
    finally:
        os.close(descriptor)


@task
def note(log: str, text: str) -> None:
    """Write a line."""
    write(log, text)


@task
def work(log: str, text: str, seconds: float) -> None:
    """Write that it began, take so long, write that it ended."""
    write(log, f"+{text}")
    time.sleep(seconds)
    write(log, f"-{text}")


@task
def add(a: int, b: int) -> int:
    """Return a sum."""
    return a + b


@task
def hold(log: str, text: str, gate: str) -> str:
    """Write that it began, and wait until the file ``gate`` exists."""
    write(log, f"+{text} {os.getpid()}")
    until(Path(gate).exists, "the gate opens", 600)
    write(log, f"-{text} {os.getpid()}")
    return text


@task(max_retries=0)
async def hold_async(log: str) -> None:
    """Write that it began, and wait for ever on an event loop, whose thread is not the slot's."""
    write(log, "+async")
    await asyncio.Event().wait()


@task
def end_once(log: str, how: str) -> None:
    """End the process that runs it, the first time, as if its work were done."""
    first = not Path(log).exists()
    write(log, str(os.getpid()))
    if how == "term":
        os.kill(os.getpid(), signal.SIGTERM)
    elif first:
        os._exit(int(how) if how.isdigit() else 0)


@task
def lower_limit(log: str) -> None:
    """Leave hardly any stack to all threads of the process."""
    write(log, str(os.getpid()))
    sys.setrecursionlimit(len(inspect.stack(0)) + 12)


@task
def keep_lock(log: str) -> None:
    """Call C code that never releases Python's lock."""
    write(log, str(os.getpid()))
    ctypes.PyDLL(None).sleep(600)


@task(max_retries=0)
def fail(message: str) -> None:
    """Raise."""
    raise ValueError(message)


@task
def complain(message: str) -> None:
    """Log an error, as code of a project does."""
    logging.getLogger(__name__).error(message)


@task
def say(text: str) -> None:
    """Print."""
    print(text)


@task
def discard(message: str) -> None:
    """Say that it is no use."""
    raise Discard(message)


@task
def told_to_wait() -> None:
    """Have been told that there are too many requests."""
    raise Throttle(600)


def backend() -> int:
    """Return the number of this process's session at PostgreSQL."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_backend_pid()")
        return int(cursor.fetchone()[0])


@task
def look(_number: int) -> int:
    """Use the database."""
    return backend()


@task
def fork() -> list[int]:
    """Return the session before a fork, the one of the forked process, and the session after."""
    before = backend()
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.write(writing, str(backend()).encode())
        finally:
            os._exit(0)
    os.close(writing)
    os.waitpid(pid, 0)
    with os.fdopen(reading) as answer:
        theirs = int(answer.read() or 0)
    return [before, theirs, backend()]


@task(max_retries=20)
def job(log: str, text: str, seconds: float, gate: str = "") -> int:
    """Write that it began, take so long (and as long as ``gate`` is missing), write that it ended; return its pid."""
    write(log, f"+{text}")
    time.sleep(seconds)
    until(lambda: not gate or Path(gate).exists(), "the gate opens", 600)
    write(log, f"-{text}")
    return os.getpid()


@task(max_retries=20)
def long_job(log: str, text: str, seconds: float) -> int:
    """Do the same for 15 to 60 s, longer than every timeout of the queue."""
    return job.func(log, text, seconds)


@task(takes_context=True)
def in_steps(context, log: str) -> list[object]:
    """Run a step, fail once after it, wait for a signal, and run another step."""
    first = context.step("first", note.func, log, "first")
    if context.attempt == 1:
        raise ValueError("once")
    answer = context.wait_for("go", schema={"ok": bool})
    context.step("second", note.func, log, "second")
    return [first, answer]


@task(takes_context=True, max_retries=0)
def in_atomic_step(context) -> None:
    """Ask for what a worker without a database cannot do."""
    context.step("first", add.func, 1, 2, atomic=True)


def _told(log: str, text: str, given: object = None, wanted: object = None) -> str:
    """Write a line; say so if ``given``, the result of another task, is missing, or not what it should be.

    Of what maps over a list, some results may be missing.
    """
    if given != wanted:
        some = isinstance(given, list) and isinstance(wanted, list) and len(given) == len(wanted)
        is_missing = given in (None, []) or (some and all(a in (None, b) for a, b in zip(given, wanted, strict=True)))
        write(log, f"WITHOUT {text}" if is_missing else f"WRONG {text} got {given}, not {wanted}")
    write(log, text)
    return text


@task
def tell(log: str, text: str, given: object = None, wanted: object = None) -> str:
    """Return the text."""
    return _told(log, text, given, wanted)


@task(max_retries=0)
def tell_after_failing(log: str, text: str) -> str:
    """Fail at the first call, then return the text."""
    is_first = text not in Path(log).read_text().splitlines()
    _told(log, text)
    if is_first:
        raise ValueError(text)
    return text


@task(max_retries=0)
def fail_to_tell(log: str, text: str) -> None:
    """Fail."""
    _told(log, text)
    raise ValueError(text)


@task
def refuse_to_tell(log: str, text: str) -> None:
    """Fail without a dead letter."""
    _told(log, text)
    raise Discard(text)


@task(takes_context=True)
def tell_and_grow(context, log: str, text: str) -> str:
    """Add two tasks, the second after the first, to the workflow."""
    first = context.workflow.add(tell, log, f"{text}+0")
    context.workflow.add(tell, log, f"{text}+1", first.result, f"{text}+0", after=[first])
    return _told(log, text)


@task(takes_context=True)
def hear_and_tell(context, log: str, text: str, given: object = None, wanted: object = None) -> str:
    """Wait for a signal, then return the text."""
    context.wait_for("go")
    return _told(log, text, given, wanted)


@task(takes_context=True)
def rest_and_tell(context, log: str, text: str, given: object = None, wanted: object = None) -> str:
    """Run a step, rest, and return the text that the step gave."""
    kept = context.step("tell", _told, log, text, given, wanted)
    context.sleep(0.02)
    return kept


@task
def items(log: str, text: str, count: int) -> list[int]:
    """Return numbers."""
    _told(log, text)
    return list(range(count))


@task
def double(number: int) -> int:
    """Return twice the number."""
    return 2 * number


@task
def undo_told(log: str, text: str, *_given: object) -> None:
    """Write that a text is no more."""
    write(log, f"undo {text}")
