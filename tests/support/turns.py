"""Turns of the processes among which pytest-xdist divides the suite: most tests run side by side, some alone."""

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

#: Bytes of the file, each a lock of the operating system: it gives back those of a process that dies.
_GATE, _TURN = 0, 1


@contextmanager
def turn(path: str, *, alone: bool) -> Iterator[None]:
    """Take a turn among all processes that use this file, side by side with others or alone."""
    with Path(path).open("r+b") as file:
        # Who waits to be alone holds the gate, so that nobody overtakes it.
        fcntl.lockf(file, fcntl.LOCK_EX, 1, _GATE)
        fcntl.lockf(file, fcntl.LOCK_EX if alone else fcntl.LOCK_SH, 1, _TURN)
        fcntl.lockf(file, fcntl.LOCK_UN, 1, _GATE)
        yield  # closing the file gives the turn back


def somebody_waits_to_be_alone(path: str) -> bool:
    """Whether somebody holds the gate."""
    with Path(path).open("r+b") as file:
        try:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, _GATE)
        except BlockingIOError:
            return True
        return False
