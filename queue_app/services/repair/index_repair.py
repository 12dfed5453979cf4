"""Repair an index whose fault is unknown: compare all of it with the rows, then build it anew, ever less often."""

import logging
import time
from collections.abc import Callable
from typing import Final

from queue_app.exceptions import IndexUnavailable
from queue_app.services.generation import condemn
from queue_app.services.repair.rebuild import is_needed, rebuild_if_needed
from queue_app.services.repair.reconcile import reconcile_everything
from queue_app.sql import snapshot

logger = logging.getLogger("taskqueue")

#: Time that a comparison has to end a stall, before the index is rebuilt.
REBUILD_AFTER_SECONDS: Final = 5.0
#: Least time between two comparisons.
COMPARE_SECONDS: Final = 60.0
#: Least times between rebuilds, in seconds; the last one repeats. Two hours after the last rebuild they begin anew.
#: ``condemn`` has shorter ones, which also hold after a change of the leader.
PAUSES: Final = (60.0, 300.0, 900.0, 3600.0)
FORGET_SECONDS: Final = 2 * PAUSES[-1]


class IndexRepair:
    """The steps against stalls of the index, and when the last ones were taken; ``clock`` returns monotonic seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._compared_at = self._rebuilt_at = float("-inf")
        self._rebuilds = 0

    def step(self, because: str, stalled_since: float) -> str:
        """Take the next step against a stall, if its time has come; return what was done, else ''."""
        now = self._clock()
        if now - stalled_since < REBUILD_AFTER_SECONDS:
            if now - self._compared_at < COMPARE_SECONDS:
                return ""
            self._compared_at = now
            return _attempt("compared index and rows", reconcile_everything)
        if now - self._rebuilt_at >= FORGET_SECONDS:
            self._rebuilds = 0
        if self._rebuilds and now - self._rebuilt_at < PAUSES[min(self._rebuilds, len(PAUSES)) - 1]:
            return ""
        if not condemn(because) and not rebuild_is_due():
            return ""
        self._rebuilds, self._rebuilt_at = self._rebuilds + 1, now
        return _attempt("built the index anew", rebuild_if_needed)


def rebuild_is_due() -> bool:
    """Whether the rows refuse the present index, for example because an error condemned it."""
    try:
        return is_needed(snapshot.generation())
    except IndexUnavailable:
        return False


def _attempt(what: str, action: Callable[[], object]) -> str:
    """Run a step, and log its failure: the watchdog has more to do."""
    try:
        action()
    except Exception as error:
        logger.exception("the watchdog has not %s", what)
        return f"not {what}: {type(error).__name__}"
    return what
