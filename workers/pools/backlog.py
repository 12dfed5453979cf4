"""What pools have in common whose tasks wait in a line of their own, under one lock."""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable

from queue_app.core.records import Outcome
from queue_app.workers.context import ClaimedAttempt


class BacklogPool(ABC):
    """Tasks that wait, in order, and outcomes that nobody has taken yet; a slot takes the next when it is free."""

    repeat_after: float | None = None

    def __init__(self, slots: int, on_outcome: Callable[[], None]) -> None:
        self.slots = slots
        self._on_outcome = on_outcome
        self._lock = threading.RLock()
        self._waiting: deque[ClaimedAttempt] = deque()
        self._outcomes: deque[Outcome] = deque()

    @abstractmethod
    def _fill(self) -> None:
        """Begin what waits, as far as there are slots; called under the lock."""

    @abstractmethod
    def _begun(self) -> Iterable[tuple[ClaimedAttempt, float]]:
        """Return what runs now and when it began, by the monotonic clock; called under the lock."""

    def submit(self, held: list[ClaimedAttempt]) -> None:
        """Take tasks to run, in this order."""
        with self._lock:
            self._waiting.extend(held)
            self._fill()

    def take_outcomes(self) -> list[Outcome]:
        """Return the outcomes since the last call, in the order in which they ended."""
        outcomes: list[Outcome] = []
        while self._outcomes:
            outcomes.append(self._outcomes.popleft())
        return outcomes

    def take_unstarted(self) -> list[ClaimedAttempt]:
        """Take back the tasks that no slot has begun."""
        with self._lock:
            unstarted, self._waiting = list(self._waiting), deque()
        return unstarted

    def running(self) -> list[tuple[ClaimedAttempt, float]]:
        """Return what runs now, and for how many seconds."""
        now = time.monotonic()
        with self._lock:
            return [(held, now - since) for held, since in self._begun()]

    def interrupt_again(self, held: ClaimedAttempt) -> None:  # noqa: B027 - not abstract: there is nothing to do
        """Do nothing: these pools end an attempt that ignores an interruption by other means."""

    @property
    def unstarted(self) -> int:
        """How many tasks wait for a slot."""
        return len(self._waiting)
