"""Repair an index whose fault is unknown: compare all of it with the rows, then build it anew, ever less often."""

import logging
import time
from collections.abc import Callable
from typing import Final

from queue_app.core.sentence import say
from queue_app.exceptions import IndexUnavailable
from queue_app.services.generation import condemn
from queue_app.services.repair.rebuild import is_needed, rebuild_until_open
from queue_app.services.repair.reconcile import reconcile_everything
from queue_app.sql import snapshot

logger = logging.getLogger("taskqueue")

#: Seconds from the comparison to the first rebuild, and from each rebuild to the next; the last repeats. ``condemn``
#: has a bound of its own, which also holds for stalls that come again, and after a change of the leader.
REBUILD_AFTER: Final = (5.0, 60.0, 300.0, 900.0, 3600.0)


class IndexRepair:
    """The steps against a stall of the index; ``clock`` returns monotonic seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._compared = False
        self._rebuilds = 0
        self._next_at = 0.0  # when a rebuild may follow

    def rest(self) -> None:
        """Forget the steps taken: no stall is left, and the next one starts with a comparison."""
        self._compared, self._rebuilds = False, 0

    def step(self, because: str) -> str:
        """Take the next step against a stall, if its time has come; return what was done, else ''."""
        now = self._clock()
        if not self._compared:
            self._compared, self._next_at = True, now + REBUILD_AFTER[0]
            return _attempt(say("compared index and rows"), reconcile_everything)
        if now < self._next_at or not (condemn(because) or rebuild_is_due()):
            return ""
        self._rebuilds += 1
        self._next_at = now + REBUILD_AFTER[min(self._rebuilds, len(REBUILD_AFTER) - 1)]
        return _attempt(say("built the index anew"), rebuild_until_open)


def rebuild_is_due() -> bool:
    """Whether the rows refuse the present index, for example because an error condemned it."""
    try:
        return is_needed(snapshot.generation())
    except IndexUnavailable:
        return False


def _attempt(what: str, action: Callable[[], object]) -> str:
    """Run a step; log its failure, because the watchdog must go on with other stalls."""
    try:
        action()
    except Exception as error:
        logger.exception("the watchdog has not %s", what)
        return say("not %(what)s: %(error)s", what=what, error=type(error).__name__)
    return what
