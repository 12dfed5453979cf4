"""Ask a server that may hang by a thread, so that the caller waits no longer than it wants."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from queue import Empty, SimpleQueue

#: Seconds after which an unanswered question is abandoned and asked again.
ABANDON_SECONDS = 10.0


class Probe[T]:
    """A question to a server, asked by a thread of its own; callers that ask meanwhile share the answer.

    The thread keeps its connections, waits ``linger`` seconds for the next question, and calls ``on_end`` at its end.
    """

    def __init__(
        self, question: Callable[[], T], *, linger: float = 0.0, on_end: Callable[[], None] | None = None
    ) -> None:
        self._question = question
        self._linger = linger
        self._on_end = on_end
        self._lock = threading.Lock()
        self._pending: PendingAnswer[T] | None = None
        self._asker: _Asker | None = None

    def ask(self) -> PendingAnswer[T]:
        """Ask, unless an answer is pending; return the pending answer."""
        with self._lock:
            pending = self._pending
            if pending is None or pending.done.is_set() or pending.age > ABANDON_SECONDS:
                pending = self._pending = PendingAnswer(self._question)
                if self._asker is None or not self._asker.accept(pending):
                    self._asker = _Asker(pending, self._linger, self._on_end)
                    self._asker.start()
        return pending


class PendingAnswer[T]:
    """The answer to a question that was asked once."""

    def __init__(self, question: Callable[[], T]) -> None:
        self.done = threading.Event()
        self._question = question
        self._answer: T | None = None
        self._asked_at = time.monotonic()

    @property
    def age(self) -> float:
        return time.monotonic() - self._asked_at

    def result(self, within: float) -> T | None:
        """Return the answer; ``None`` if it failed or took longer than ``within`` seconds since the question."""
        self.done.wait(max(0.0, within - self.age))
        return self._answer

    def fetch(self) -> None:
        """Ask the server; the caller sets ``done``."""
        with suppress(Exception):  # any error means that the server does not answer
            self._answer = self._question()


class _Asker(threading.Thread):
    """Asks one question after the other. A daemon: a server that hangs must not keep the process from ending."""

    def __init__(self, first: PendingAnswer[object], linger: float, on_end: Callable[[], None] | None) -> None:
        super().__init__(name="taskqueue-probe", daemon=True)
        self._accepted: SimpleQueue[PendingAnswer[object]] = SimpleQueue()
        self._accepted.put(first)
        self._linger = linger
        self._on_end = on_end
        self._lock = threading.Lock()
        self._is_free = False

    def accept(self, pending: PendingAnswer[object]) -> bool:
        """Take a question; return false if the thread is busy, has ended, or belongs to the process before a fork."""
        with self._lock:
            if not self._is_free or not self.is_alive():
                return False
            self._is_free = False
            self._accepted.put(pending)
            return True

    def run(self) -> None:
        while pending := self._next():
            pending.fetch()
            with self._lock:
                self._is_free = True
            pending.done.set()
        if self._on_end:
            self._on_end()

    def _next(self) -> PendingAnswer[object] | None:
        try:
            return self._accepted.get(timeout=self._linger)
        except Empty:
            with self._lock:
                if self._is_free:
                    self._is_free = False
                    return None
            return self._accepted.get()  # accepted at this moment
