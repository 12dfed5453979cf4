"""Say what a worker does right now, for whoever asks with SIGUSR1."""

from __future__ import annotations

import os
import sys
import threading
import traceback
from collections.abc import Sequence
from contextlib import suppress

from workers.context import Held

STDERR = 2


def dump(name: str, running: Sequence[tuple[Held, float]], unstarted: int) -> None:
    """Write what runs, and the stack of each thread, to the standard error; safe in a signal handler."""
    lines = [f"worker {name} (pid {os.getpid()}): {len(running)} run, {unstarted} wait for a slot"]
    for held, seconds in running:
        task = held.task
        asked = f", asked to end: {held.interruption.__name__}" if held.interruption else ""
        lines.append(f"  {task.task_type} {task.id} attempt {task.attempt}, {seconds:.1f} of {held.timeout:g} s{asked}")
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    for ident, frame in sys._current_frames().items():  # noqa: SLF001 - there is no other way to see them
        lines.append(f"thread {names.get(ident, ident)}:")
        lines += [line.rstrip() for line in traceback.format_stack(frame)[-30:]]
    with suppress(OSError):
        os.write(STDERR, ("\n".join(lines) + "\n").encode("utf-8", "backslashreplace"))
