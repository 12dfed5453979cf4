"""Log at most once a minute what this process has done."""

import logging
import time
from collections import Counter
from typing import Final

from queue_app.logs import ATTRIBUTE

logger = logging.getLogger("taskqueue")

SECONDS: Final = 60.0
#: Time between the first event after a pause and its line, so that the line covers a whole batch.
FIRST_SECONDS: Final = 1.0
#: Maximum number of task types that a line names.
NAMED: Final = 3


class Summary:
    """Counts what was done, and logs the counts."""

    def __init__(self) -> None:
        self._done: Counter[tuple[str, str]] = Counter()  # (what, task type), since the last line
        self._before: Counter[str] = Counter()  # what, up to the last line
        self._since = self._next_at = time.monotonic()

    def add(self, what: str, count: int = 1, task_type: str = "") -> None:
        """Count something that was done, such as "completed"."""
        if not self._done:
            self._since = time.monotonic()
            self._next_at = max(self._next_at, self._since + FIRST_SECONDS)
        self._done[what, task_type] += count

    @property
    def totals(self) -> Counter[str]:
        """What was done since the start."""
        return self._before + _sum(self._done, 0)

    def due_in(self) -> float | None:
        """Return the seconds until the next line; ``None`` if there is nothing to log."""
        return max(0.0, self._next_at - time.monotonic()) if self._done else None

    def log_if_due(self, running: int = 0) -> None:
        """Log what was done since the last line, if it is time."""
        if self.due_in() != 0.0:
            return
        now = time.monotonic()
        done, types = _sum(self._done, 0), _sum(self._done, 1)
        self._before += done
        self._done, self._next_at = Counter(), now + SECONDS
        named = ", ".join(f"{name} {count}" for name, count in types.most_common(NAMED))
        more = f" and {len(types) - NAMED} more" if len(types) > NAMED else ""
        logger.info(
            "done in %.0f s: %s%s%s",
            now - self._since,
            counted(done),
            f" ({named}{more})" if named else "",
            f"; {running} running" if running else "",
            extra={ATTRIBUTE: {"event": "Done", **done, "running": running}},
        )


def _sum(counts: Counter[tuple[str, str]], position: int) -> Counter[str]:
    """Add up the counts by what was done (0) or by task type (1); leave out empty names."""
    found: Counter[str] = Counter()
    for key, count in counts.items():
        if key[position]:
            found[key[position]] += count
    return found


def counted(counts: Counter[str]) -> str:
    """Return counts as text, such as "12 completed, 1 failed"."""
    return ", ".join(f"{count} {what}" for what, count in sorted(counts.items()))
