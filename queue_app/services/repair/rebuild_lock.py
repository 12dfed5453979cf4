"""The lock of rebuilds: one process rebuilds at a time, and soon after it has died another one begins.

A thread renews the lock, because any step may take longer than the lock lasts: PostgreSQL reads from a cold disk, or
the server holds millions of other keys. Without it, two processes would take the lock from each other at each step, and
no rebuild would ever end.

A rebuild runs in a thread that ends with its process. A process that exits releases the lock, so that another one can
rebuild at once.
"""

import atexit
import os
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Final

from queue_app.exceptions import IndexUnavailable
from queue_app.index import Index

#: Time after which the lock of a dead rebuilder lapses.
LOCK_SECONDS = 5.0
#: The lock is renewed this often while it lasts.
RENEWALS: Final = 5
#: A step that takes longer hangs: its lock lapses, and another process may begin.
STEP_SECONDS = 60.0

NAME: Final = "rebuild"

#: Tokens of locks that this process could not release because Redis was away: its next rebuild holds that lock already.
unreleased: Final[list[str]] = []


class RebuildLock:
    """The lock while a process holds it."""

    def __init__(self, index: Index, token: str) -> None:
        self.token = token
        self._index = index
        self.pid = os.getpid()
        self._step_began_at = time.monotonic()
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._renew, name="taskqueue-rebuild-lock", daemon=True)

    def end_step(self) -> None:
        """Note that the rebuild makes progress."""
        self._step_began_at = time.monotonic()

    def hold(self) -> None:
        """Renew the lock until it is released."""
        self._thread.start()
        _held.add(self)

    def release(self) -> None:
        """Release the lock. Raises ``IndexUnavailable``."""
        _held.discard(self)
        self._is_over.set()
        self._thread.join()  # or it might take the lock again after its release
        self._index.lock(NAME, self.token, 0)

    def _renew(self) -> None:
        while not self._is_over.wait(LOCK_SECONDS / RENEWALS):
            if time.monotonic() - self._step_began_at > STEP_SECONDS:
                return
            with suppress(IndexUnavailable):
                if not self._index.lock(NAME, self.token, LOCK_SECONDS):
                    return  # another process has it


#: The locks that this process holds, or its parent held when it was forked.
_held: Final[set[RebuildLock]] = set()


@contextmanager
def rebuild_lock(index: Index) -> Iterator[RebuildLock | None]:
    """Hold the lock of rebuilds for a block; yield ``None`` if another process holds it."""
    token = unreleased.pop() if unreleased else uuid.uuid4().hex
    if not index.lock(NAME, token, LOCK_SECONDS):
        yield None
        return
    lock = RebuildLock(index, token)
    lock.hold()
    try:
        yield lock
    finally:
        try:
            lock.release()
        except IndexUnavailable:
            unreleased.append(token)
            raise


@atexit.register
def release_at_exit() -> None:
    """Release the lock of a rebuild that ends unfinished because its process exits."""
    for lock in list(_held):
        if lock.pid == os.getpid():
            with suppress(IndexUnavailable):
                lock.release()
