"""Task ids: UUID version 7, strictly increasing within a process.

The layout is RFC 9562, section 5.7, with the counter of section 6.2 (method 1) in
``rand_a`` and the top of ``rand_b``. Ids of one process sort in the order of their creation,
so tasks with equal scores stay first in, first out. Python has ``uuid.uuid7`` only since 3.14.
"""

import os
import struct
import threading
import time
import uuid
from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import Final

from queue_app.exceptions import InvalidTaskData

#: An id as a ``UUID``, or as the text in which results, the API and logs give it.
type Id = uuid.UUID | str

#: How far the time in an id may be from the times of its row, which are by PostgreSQL's clock.
CLOCKS_DIFFER: Final = timedelta(minutes=1)

_COUNTER_BITS = 42
_POOL_BYTES = 1280
_COUNTER_MAX = (1 << _COUNTER_BITS) - 1
# Set the slots directly: the constructor, which checks six ways to give the value, takes longer than all the rest.
_put_int, _put_is_safe = (vars(uuid.UUID)[name].__set__ for name in ("int", "is_safe"))
_UNKNOWN = uuid.SafeUUID.unknown
_VERSION_AND_VARIANT = 0x7 << 76 | 0b10 << 62
#: The 80 random bits of an id: 32 that end it, and 48 of which a counter begins or advances.
_SEED = struct.Struct(">IHI")


class UUID7Generator:
    """Generate increasing ids; one generator per process serves all threads."""

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        """Reset the state: a forked child must not repeat its parent's ids."""
        self._lock = threading.Lock()
        self._last_ms = 0
        self._counter = 0
        self._pool, self._used = b"", 0  # random bytes, read in advance because each read is a system call

    def __call__(self) -> uuid.UUID:
        """Return the next id."""
        return self.take(1)[0]

    def take(self, count: int) -> list[uuid.UUID]:
        """Return the next ``count`` ids."""
        ids: list[uuid.UUID] = []
        with self._lock:
            now_ms, last_ms, counter = time.time_ns() // 1_000_000, self._last_ms, self._counter
            for top, middle, low in _SEED.iter_unpack(self._random(_SEED.size * count)):
                if now_ms > last_ms:
                    last_ms = now_ms
                    counter = (middle << 32 | low) & (
                        _COUNTER_MAX >> 1
                    )  # leaves room for 2**41 more in this millisecond
                else:  # the same millisecond, or the clock went back
                    counter += 1 + (low & 0xFF)
                    if counter > _COUNTER_MAX:
                        last_ms += 1
                        counter = (middle << 32 | low) & (_COUNTER_MAX >> 1)
                made = object.__new__(uuid.UUID)
                place = (counter >> 30) << 64 | (counter & 0x3FFF_FFFF) << 32
                _put_int(made, (last_ms & 0xFFFF_FFFF_FFFF) << 80 | _VERSION_AND_VARIANT | place | top)
                _put_is_safe(made, _UNKNOWN)
                ids.append(made)
            self._last_ms, self._counter = last_ms, counter
        return ids

    def _random(self, size: int) -> bytes:
        """Return random bytes; the caller holds the lock."""
        if self._used + size > len(self._pool):
            self._pool, self._used = os.urandom(max(_POOL_BYTES, size)), 0
        self._used += size
        return self._pool[self._used - size : self._used]


_generator = UUID7Generator()


def uuid7() -> uuid.UUID:
    """Return a new UUID version 7, greater than every earlier one of this process."""
    return _generator()


def uuid7s(count: int) -> list[uuid.UUID]:
    """Return ``count`` new ids, in order."""
    return _generator.take(count)


def first_at(time: datetime, later: timedelta = timedelta()) -> uuid.UUID:
    """Return the least id of the millisecond that is ``later`` than ``time``."""
    milliseconds = int((time.timestamp() + later.total_seconds()) * 1000)
    return uuid.UUID(int=max(0, milliseconds) << 80)


def parse_id(given: Id) -> uuid.UUID:
    """Return an id that a caller gave; raise ``InvalidTaskData`` for what is no UUID."""
    if isinstance(given, uuid.UUID):
        return given
    try:
        return uuid.UUID(given)
    except (ValueError, TypeError, AttributeError):
        raise InvalidTaskData(
            "id", f"{given!r:.100} is not an id; give a UUID, or its text.", code="invalid_id"
        ) from None


def of_bytes(member: bytes) -> uuid.UUID:
    """Return the id of 16 bytes, faster than the constructor."""
    made = object.__new__(uuid.UUID)
    _put_int(made, int.from_bytes(member))
    _put_is_safe(made, _UNKNOWN)
    return made


def as_digits(ids: Iterable[uuid.UUID]) -> list[str]:
    """Return the 32 hex digits of each id, several times faster than ``UUID.hex``."""
    digits = b"".join([task_id.bytes for task_id in ids]).hex()
    return [digits[at : at + 32] for at in range(0, len(digits), 32)]


def as_texts(ids: Iterable[uuid.UUID]) -> list[str]:
    """Return the ids with dashes, twice as fast as ``str`` of each."""
    return [f"{it[:8]}-{it[8:12]}-{it[12:16]}-{it[16:20]}-{it[20:]}" for it in as_digits(ids)]


os.register_at_fork(after_in_child=_generator.forget)
