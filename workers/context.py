"""What a task sees of its own run, and what a worker holds of it."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final, Protocol

from django.tasks.base import TaskContext

from queue_app.core import trace
from queue_app.core.records import ClaimedTask
from queue_app.exceptions import Interruption, TaskCancelled

if TYPE_CHECKING:
    _TaskContext = TaskContext[..., Any]  # generic in the stubs only
else:
    _TaskContext = TaskContext

MESSAGE_LENGTH: Final = 200
#: An attempt may run for at most a year, however often it asks for more.
MAX_EXTENSION: Final = 365 * 86_400.0

#: Shields are rare and short to enter: one lock for all of them spares one for each attempt.
shields = threading.Lock()


class ProgressSink(Protocol):
    """Takes what attempts say while they run; the worker's loop stores it."""

    def progress(self, held: ClaimedAttempt, fraction: float, message: str) -> None:
        """Take how far the attempt has come."""

    def extend(self, held: ClaimedAttempt, seconds: float) -> None:
        """Take that the attempt needs so many more seconds."""

    def log(self, held: ClaimedAttempt, line: str) -> None:
        """Take a line that the attempt logged."""


class _Deaf:
    """A reports that takes no notice, for executors in tests."""

    def progress(self, held: ClaimedAttempt, fraction: float, message: str) -> None:
        """Drop it."""

    def extend(self, held: ClaimedAttempt, seconds: float) -> None:
        """Drop it."""

    def log(self, held: ClaimedAttempt, line: str) -> None:
        """Drop it."""


NO_REPORTS: Final[ProgressSink] = _Deaf()


@dataclass(slots=True, eq=False)
class ClaimedAttempt:
    """A task in this worker's in_flight, and when the claim's answer arrived (monotonic, s)."""

    task: ClaimedTask
    claimed_at: float
    extended: float = 0.0  # seconds beyond the timeout of the claim
    interruption: type[Interruption] | None = None  # why it was asked to end
    interrupted_at: float = 0.0  # monotonic
    shielded: int = 0  # depth of shields around what runs now

    def row_time(self, at: float) -> Any:
        """Return the monotonic time ``at`` by the database's clock, as far as the claim tells it."""
        return self.task.started_at + timedelta(seconds=at - self.claimed_at)

    @property
    def timeout(self) -> float:
        """Seconds that the attempt may take, with what it asked for."""
        return self.task.timeout + self.extended


def note_interruption(held: ClaimedAttempt, interruption: type[Interruption]) -> None:
    """Note why and when an attempt is asked to end."""
    held.interruption, held.interrupted_at = interruption, time.monotonic()


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueTaskContext(_TaskContext):  # type: ignore[misc] # frozen in Django, not in its stubs
    """What a task sees of its own run, when it takes a ``context``."""

    attempt_number: int = field(default=1)
    held: ClaimedAttempt | None = field(default=None, repr=False)
    reports: ProgressSink = field(default=NO_REPORTS, repr=False)

    @property
    def attempt(self) -> int:
        """The number of this try: 1 for the first, one more after each failure."""
        return self.attempt_number

    @property
    def cancelled(self) -> bool:
        """Whether the task was asked to stop."""
        return self.held is not None and self.held.interruption is TaskCancelled

    @property
    def traceparent(self) -> str | None:
        """The W3C trace context that this attempt belongs to; tasks that it enqueues carry it on."""
        return trace.current.get()

    def progress(self, fraction: float, message: str = "") -> None:
        """Say how far the task has come, from 0 to 1, and what it does now.

        Call it as often as you like: it costs microseconds, and of what comes within half a
        second the last is stored. Raises ``ValueError`` for a fraction outside of its bounds.
        """
        fraction = float(fraction)
        if not 0.0 <= fraction <= 1.0:  # false for NaN too
            raise ValueError(f"progress must lie between 0 and 1, not {fraction!r}.")
        if self.held is not None:
            self.reports.progress(self.held, fraction, str(message)[:MESSAGE_LENGTH])

    def extend(self, seconds: float | timedelta) -> None:
        """Move the deadline of this attempt by so many seconds. Raises ``ValueError`` unless it is above 0."""
        more = seconds.total_seconds() if isinstance(seconds, timedelta) else float(seconds)
        if not 0 < more <= MAX_EXTENSION:
            raise ValueError(f"seconds must lie between 0 and {MAX_EXTENSION:.0f}, not {seconds!r}.")
        if self.held is not None:
            more = min(more, max(0.0, MAX_EXTENSION - self.held.timeout))
            self.held.extended += more
            self.reports.extend(self.held, more)

    @contextmanager
    def shield(self) -> Iterator[None]:
        """Put an interruption off to the end of a block, which must not be left half done.

        In it, ``cancelled`` says whether there is one. A block that goes on for too long
        after its timeout is given up all the same.
        """
        held = self.held
        if held is None:
            yield
            return
        with shields:
            held.shielded += 1
        try:
            yield
        finally:
            with shields:
                held.shielded -= 1
                wanted = held.interruption if not held.shielded else None
        if wanted is not None:
            raise wanted
