"""How far to claim ahead of free slots: by time, not by count.

A worker that claims for free slots only pays a round trip per handful of tasks. One that
claims a fixed number ahead hoards slow tasks while other workers idle, and lets an urgent
one wait behind them. So the allowance is the work that takes about ``budget`` seconds by
the recent run times of the task types; nothing while a type is unknown or slow.
"""

from __future__ import annotations

import time

from queue_app.index import MAX_CLAIM

#: A type that has not run for so many seconds no longer says anything.
FORGET_SECONDS = 60.0
#: Weight of the newest run time in the running mean.
WEIGHT = 0.1
#: The least run time assumed, so that the allowance stays finite.
FLOOR_SECONDS = 0.000_05


class LookAhead:
    """Remembers recent run times by task type."""

    def __init__(self, budget_ms: float, slots: int) -> None:
        self.budget = budget_ms / 1000
        self.slots = slots
        self._means: dict[str, tuple[float, float]] = {}  # type -> (mean seconds, when last run)
        self._unproven: dict[str, float] = {}  # type -> when it was met without having run here

    def observe(self, task_type: str, seconds: float) -> None:
        """Learn from one run; a run slower than the mean counts in full at once."""
        self._unproven.pop(task_type, None)
        mean = self._means.get(task_type, (seconds, 0.0))[0]
        mean = seconds if seconds > 10 * mean else mean + WEIGHT * (seconds - mean)
        self._means[task_type] = (mean, time.monotonic())

    def distrust(self, task_type: str) -> None:
        """Claim nothing ahead until this type has run here, or was not met for a while."""
        self._means.pop(task_type, None)
        self._unproven[task_type] = time.monotonic()

    def allowance(self) -> int:
        """Return how many tasks may be claimed beyond the free slots."""
        if not self.budget or not self._means:
            return 0
        cutoff = time.monotonic() - FORGET_SECONDS
        if any(met >= cutoff for met in self._unproven.values()):
            return 0
        recent = [mean for mean, seen in self._means.values() if seen >= cutoff]
        if not recent:
            self._means.clear()
            return 0
        return min(MAX_CLAIM, int(self.slots * self.budget / max([FLOOR_SECONDS, *recent])))

    def is_quick(self, task_type: str) -> bool:
        """Whether a task of this type may wait in this worker behind others."""
        known = self._means.get(task_type)
        return known is not None and known[0] <= self.budget

    @property
    def patience(self) -> float:
        """Seconds after which tasks that wait for a slot are given back."""
        return max(0.25, 10 * self.budget)
