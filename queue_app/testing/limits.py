"""The limits of a queue in memory, named like the fields of ``Queue``."""

from dataclasses import dataclass, field, fields
from datetime import datetime, timedelta
from typing import Any, Self

from django.core.exceptions import ImproperlyConfigured

from queue_app.core.limits import FIFO
from queue_app.exceptions import near_matches


@dataclass(slots=True, kw_only=True)
class MemoryLimits:
    """Limits and rate of one queue, by the test's clock."""

    order: str = FIFO
    paused: bool = False
    max_retries: int | None = None
    timeout_seconds: float | None = None
    rate_count: int | None = None
    rate_seconds: float = 1.0
    rate_burst: int | None = None
    min_delay_seconds: float = 0.0
    _tokens: float = field(default=0.0, init=False)
    _counted_at: datetime | None = field(default=None, init=False)
    _last_start: datetime | None = field(default=None, init=False)

    @classmethod
    def of(cls, queue: str, options: dict[str, Any]) -> Self:
        """Return the limits in ``options``; raise ``ImproperlyConfigured`` for an unknown name."""
        known = [item.name for item in fields(cls) if item.init]
        for name in options:
            if name not in known:
                matches = near_matches(str(name), known)
                hint = f"Did you mean {matches[0]!r}?" if matches else f"Known names: {', '.join(known)}."
                raise ImproperlyConfigured(f"The test backend does not support {name!r} of queue {queue!r}. {hint}")
        return cls(**options)

    def free_at(self, now: datetime) -> datetime | None:
        """Return when the next task may start, ``now`` or later; ``None`` while the queue is paused."""
        if self.paused:
            return None
        earliest = now
        if self._last_start is not None:
            earliest = max(earliest, self._last_start + timedelta(seconds=self.min_delay_seconds))
        if self.rate_count is not None:
            missing = 1 - self._refilled(now)
            if missing > 0:
                earliest = max(earliest, now + timedelta(seconds=missing * self.rate_seconds / self.rate_count))
        return earliest

    def start(self, now: datetime) -> None:
        if self.rate_count is not None:
            self._tokens, self._counted_at = self._refilled(now) - 1, now
        self._last_start = now

    def _refilled(self, now: datetime) -> float:
        assert self.rate_count is not None  # noqa: S101 - checked by both callers
        burst = float(self.rate_burst or self.rate_count)
        if self._counted_at is None:
            return burst
        passed = (now - self._counted_at).total_seconds()
        # Rounded, so that a whole token is there at the time that free_at() returns.
        return min(burst, round(self._tokens + passed * self.rate_count / self.rate_seconds, 6))
