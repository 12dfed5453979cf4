"""Let Python's garbage collector rest while a call makes many objects."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

#: Maximum number of tasks for which the collector rests: half a second at most.
MOST: Final = 20_000


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
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
