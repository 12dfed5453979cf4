"""Repeat slow queries less often, so that each takes at most a hundredth of the time.

Such a query reads an index of the few rows that are in some state now. While one transaction keeps an old snapshot
open, PostgreSQL cannot remove the entries of rows that have left the state, and the query reads them too.
"""

import math
import time
from collections.abc import Callable
from typing import Final

#: Length of a pause, as a multiple of the time that the query took.
FACTOR: Final = 100


class QueryPauses:
    """The pauses of queries, by name; ``clock`` returns monotonic seconds.

    Pauses that are shorter than ``interval``, after which the queries are repeated anyway, are left out.
    """

    def __init__(self, interval: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._interval = interval
        self._clock = clock
        self._until: dict[str, float] = {}

    def __contains__(self, name: str) -> bool:
        """Whether the query pauses now."""
        return self._clock() < self._until.get(name, -math.inf)

    def begin(self, name: str, seconds: float) -> None:
        """Begin the pause of a query that took this long."""
        if FACTOR * seconds > self._interval:
            self._until[name] = self._clock() + FACTOR * seconds
