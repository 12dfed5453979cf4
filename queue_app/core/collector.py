"""Pause Python's garbage collector while a call makes many objects."""

import gc
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

#: Maximum number of tasks for which the collector pauses: half a second at most.
MOST: Final = 20_000

#: The thread that has paused the collector, if any.
_paused_for: Final[set[int]] = set()


@contextmanager
def collector_paused(tasks: int) -> Iterator[None]:
    """Start no collection inside the block, which makes objects for this number of tasks.

    The objects live until the block ends, so a collection frees nothing. But it reads all objects of the process, which
    takes as long as storing thousands of tasks. If the project or another thread has switched the collector off, the
    block leaves it alone.
    """
    if tasks > MOST or not gc.isenabled():
        yield
        return
    thread = threading.get_ident()
    _paused_for.add(thread)
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
        _paused_for.discard(thread)


def _resume_in_child() -> None:
    """Start collections again in a process that another thread has forked meanwhile: it has only that thread."""
    if _paused_for:
        _paused_for.clear()
        gc.enable()


os.register_at_fork(after_in_child=_resume_in_child)
