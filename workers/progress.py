"""What the attempts in this worker say, gathered until the loop stores it.

Slots write here from their own threads, as often as they like; of what comes between two
turns of the loop, only the last is stored.
"""

from __future__ import annotations

import threading
import time
import uuid
from collections import deque
from collections.abc import Callable
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field

from queue_app import conf
from queue_app.core.records import ProgressReport
from queue_app.workers.context import ClaimedAttempt

#: Progress and lines are stored no more often than this; a deadline at once.
PAUSE_SECONDS = 0.5
LINE_LENGTH = 2_000  # characters

type Attempt = tuple[uuid.UUID, int]


@dataclass(slots=True)
class _Said:
    """What one attempt said since it was last stored; its lines since it began."""

    held: ClaimedAttempt
    progress: float | None = None
    message: str = ""
    extend: float = 0.0
    lines: deque[str] = field(default_factory=deque)
    size: int = 0  # characters of the lines
    dropped: int = 0
    has_new_lines: bool = False

    def note(self) -> ProgressReport:
        """Return what is to be stored."""
        task = self.held.task
        lines = "\n".join(self.lines) if self.has_new_lines else None
        return ProgressReport(
            task.id, task.attempt, task.worker_id, self.progress, self.message, lines, self.dropped, self.extend
        )


class ProgressReports:
    """The reports of a worker's attempts; ``ring`` tells the loop that there is something on it."""

    def __init__(self, ring: Callable[[], None]) -> None:
        self._ring = ring
        self._lock = threading.Lock()
        self._said: dict[Attempt, _Said] = {}
        self._fresh: set[Attempt] = set()  # of these, what has something to store
        self._urgent = False
        self._next_at = 0.0  # monotonic
        limits = conf.get().task_logs
        self._max_lines, self._max_size = limits.max_lines, limits.max_characters

    def progress(self, held: ClaimedAttempt, fraction: float, message: str) -> None:
        """Take how far the attempt has come."""
        with self._lock:
            said = self._open(held)
            said.progress, said.message = fraction, _storable(message)
        self._changed(held)

    def extend(self, held: ClaimedAttempt, seconds: float) -> None:
        """Take that the attempt needs so many more seconds; it is stored with the next turn of the loop."""
        with self._lock:
            self._open(held).extend += seconds
            self._urgent = True
        self._changed(held, urgent=True)

    def log(self, held: ClaimedAttempt, line: str) -> None:
        """Take what the attempt logged; of too many lines the first are left out."""
        with self._lock:
            said = self._open(held)
            for part in _storable(line).splitlines() or [""]:
                text = part[:LINE_LENGTH]
                said.lines.append(text)
                said.size += len(text) + 1
            while said.lines and (len(said.lines) > self._max_lines or said.size > self._max_size):
                said.size -= len(said.lines.popleft()) + 1
                said.dropped += 1
            said.has_new_lines = True
        self._changed(held)

    def due_in(self) -> float | None:
        """Return the seconds until ``take`` has something; ``None`` while there is nothing."""
        if not self._fresh:
            return None
        return 0.0 if self._urgent else max(0.0, self._next_at - time.monotonic())

    def take(self, ended: AbstractSet[Attempt] = frozenset()) -> list[ProgressReport]:
        """Return what is due, and whatever the attempts that ``ended`` still had to say; those are forgotten."""
        if not self._said:
            return []
        with self._lock:
            taken = set(self._fresh) if self.due_in() == 0.0 else self._fresh & ended
            notes = [self._said[key].note() for key in taken]
            for key in taken:
                said = self._said[key]
                said.progress, said.extend, said.has_new_lines = None, 0.0, False
            self._fresh -= taken
            if taken:
                self._urgent = False
                self._next_at = time.monotonic() + PAUSE_SECONDS
            for key in ended:
                self._said.pop(key, None)
        return notes

    def _open(self, held: ClaimedAttempt) -> _Said:
        key = held.task.id, held.task.attempt
        said = self._said.get(key)
        if said is None:
            said = self._said[key] = _Said(held)
        return said

    def _changed(self, held: ClaimedAttempt, *, urgent: bool = False) -> None:
        with self._lock:
            is_first = not self._fresh
            self._fresh.add((held.task.id, held.task.attempt))
        if is_first or urgent:
            self._ring()


def _storable(text: str) -> str:
    return text.replace("\x00", "\\x00").encode("utf-8", "backslashreplace").decode()
