"""Whether, why and by when a worker exits."""

from __future__ import annotations

import time

from queue_app.workers.lifecycle import Exit


class Shutdown:
    """Set by signals and by other threads, read by the loop."""

    def __init__(self, grace_seconds: float) -> None:
        self.lost = ""  # why the worker lost its tasks: it was declared dead, or its supervisor is gone
        self.draining = False  # claims nothing more, and exits when its tasks have ended
        self.quiet = False  # claims nothing more, and stays
        self._hurried = False
        self._grace = grace_seconds
        self._at: float | None = None  # monotonic time at which the grace period ends

    def drain(self) -> None:
        """Exit when the running tasks have ended, or when the grace period, counted from the first call, is over."""
        self.draining = True
        if self._at is None:
            self._at = time.monotonic() + self._grace

    def hurry(self) -> None:
        """Exit with the next turn of the loop."""
        self.draining = self._hurried = True

    @property
    def wanted(self) -> bool:
        """Whether the worker exits soon."""
        return self.draining or bool(self.lost)

    @property
    def is_now(self) -> bool:
        """Whether the worker exits now, even if tasks still run."""
        return bool(self.lost) or self._hurried or self.remaining == 0

    @property
    def remaining(self) -> float | None:
        """Seconds until the grace period is over; ``None`` if the worker does not drain."""
        return None if self._at is None else max(0.0, self._at - time.monotonic())

    def code(self, *, failed: bool, gave_back: bool) -> Exit:
        """Return the exit code: an outcome that could not be written comes first, then the reason to exit."""
        if failed:
            return Exit.CRASHED
        if self.lost:
            return Exit.LOST
        return Exit.GAVE_BACK if gave_back else Exit.OK
