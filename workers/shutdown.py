"""Whether, why and by when a worker is to leave."""

from __future__ import annotations

import time

from queue_app.workers.lifecycle import Exit


class Shutdown:
    """Set by signals and by other threads, read by the loop."""

    def __init__(self, grace_seconds: float) -> None:
        self.lost = ""  # why the worker has no tasks any more: declared dead, or left alone
        self.draining = False  # takes nothing new
        self.quiet = False  # the same, and stays
        self._hurried = False
        self._grace = grace_seconds
        self._at: float | None = None  # monotonic time at which draining is over

    def drain(self) -> None:
        """Leave when what runs has ended, or when the grace period is over; it counts from the first call."""
        self.draining = True
        if self._at is None:
            self._at = time.monotonic() + self._grace

    def hurry(self) -> None:
        """Leave with the next step of the loop."""
        self.draining = self._hurried = True

    @property
    def wanted(self) -> bool:
        """Whether nothing may be claimed any more."""
        return self.draining or bool(self.lost)

    @property
    def is_now(self) -> bool:
        """Whether to leave whatever still runs."""
        return bool(self.lost) or self._hurried or self.remaining == 0

    @property
    def remaining(self) -> float | None:
        """Seconds until the grace period is over; ``None`` when nothing limits it."""
        return None if self._at is None else max(0.0, self._at - time.monotonic())

    def code(self, *, failed: bool, gave_back: bool) -> Exit:
        """Return the exit code: what could not be written counts first, then why the worker left."""
        if failed:
            return Exit.CRASHED
        if self.lost:
            return Exit.LOST
        return Exit.GAVE_BACK if gave_back else Exit.OK
