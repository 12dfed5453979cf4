"""Let looks that take long rest, so that each takes at most a hundredth of the time.

A look reads an index of rows that are in some state now, and of which few are. While one transaction keeps an old
snapshot open, PostgreSQL cannot remove the entries of the rows that have left the state, and the look reads them too.
"""

import math
import time
from collections.abc import Callable
from typing import Final

#: A look is repeated after this many times the time that it took.
FACTOR: Final = 100


class Rests:
    """When each look may be repeated, by name; ``clock`` returns monotonic seconds.

    A look that is repeated after ``interval`` seconds anyway needs no rest that is shorter.
    """

    def __init__(self, interval: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._interval = interval
        self._clock = clock
        self._until: dict[str, float] = {}

    def __contains__(self, name: str) -> bool:
        """Whether the look rests now."""
        return self._clock() < self._until.get(name, -math.inf)

    def begin(self, name: str, seconds: float) -> None:
        """Let a look rest that took this long."""
        if FACTOR * seconds > self._interval:
            self._until[name] = self._clock() + FACTOR * seconds
