"""Task ids: UUID version 7, strictly increasing within a process.

The layout is RFC 9562, section 5.7, with the counter of section 6.2 (method 1) in
``rand_a`` and the top of ``rand_b``: ids made in one process sort in the order in which
they were made, so equal scores in a lane keep first-in-first-out order. Python has
``uuid.uuid7`` from 3.14 on only.
"""

from __future__ import annotations

import os
import threading
import time
import uuid

_COUNTER_BITS = 42
_COUNTER_MAX = (1 << _COUNTER_BITS) - 1


class UUID7Generator:
    """Makes increasing ids; one per process serves all threads."""

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        """Start with a lock and a counter of its own: a forked child must not repeat its parent's ids."""
        self._lock = threading.Lock()
        self._last_ms = 0
        self._counter = 0

    def __call__(self) -> uuid.UUID:
        """Return the next id."""
        random_bits = int.from_bytes(os.urandom(10))
        with self._lock:
            now_ms = time.time_ns() // 1_000_000
            if now_ms > self._last_ms:
                self._last_ms = now_ms
                self._counter = random_bits & (_COUNTER_MAX >> 1)  # leaves room for 2**41 more in this millisecond
            else:  # the same millisecond, or the clock went back
                self._counter += 1 + (random_bits & 0xFF)
                if self._counter > _COUNTER_MAX:
                    self._last_ms += 1
                    self._counter = random_bits & (_COUNTER_MAX >> 1)
            stamp, counter = self._last_ms, self._counter
        value = (stamp & 0xFFFF_FFFF_FFFF) << 80
        value |= 0x7 << 76  # version
        value |= (counter >> 30) << 64
        value |= 0b10 << 62  # variant
        value |= (counter & 0x3FFF_FFFF) << 32
        value |= (random_bits >> 48) & 0xFFFF_FFFF
        return uuid.UUID(int=value)


_generator = UUID7Generator()


def uuid7() -> uuid.UUID:
    """Return a new UUID version 7, greater than every earlier one of this process."""
    return _generator()


os.register_at_fork(after_in_child=_generator.forget)
