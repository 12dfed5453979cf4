"""Put a question to a server by a thread of its own, and give up on it in time.

A server that hangs answers nothing for as long as it likes, and a driver without timeouts
waits as long. So whoever wants to know waits only so long for the thread that asks.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from queue import Empty, SimpleQueue

#: A question without an answer for so long is given up, and put again.
ABANDON_SECONDS = 10.0


class Probe[T]:
    """A question to a server, put once at a time and shared by everyone who asks meanwhile.

    The thread waits ``linger`` seconds for the next question, with what it has open, and
    calls ``goodbye`` when it ends.
    """

    def __init__(
        self, question: Callable[[], T], *, linger: float = 0.0, goodbye: Callable[[], None] | None = None
    ) -> None:
        self._question = question
        self._linger = linger
        self._goodbye = goodbye
        self._lock = threading.Lock()
        self._running: Attempt[T] | None = None
        self._asker: _Asker | None = None

    def ask(self) -> Attempt[T]:
        """Put the question, unless it is being put."""
        with self._lock:
            attempt = self._running
            if attempt is None or attempt.done.is_set() or attempt.age > ABANDON_SECONDS:
                attempt = self._running = Attempt(self._question)
                if self._asker is None or not self._asker.take(attempt):
                    self._asker = _Asker(attempt, self._linger, self._goodbye)
                    self._asker.start()
        return attempt

    def answers(self, within: float) -> bool:
        """Return whether the server answered, after at most ``within`` seconds."""
        attempt = self.ask()
        return attempt.done.wait(within) and attempt.succeeded


class Attempt[T]:
    """The question, put once."""

    def __init__(self, question: Callable[[], T]) -> None:
        self.done = threading.Event()
        self.succeeded = False
        self._question = question
        self._answer: T | None = None
        self._since = time.monotonic()

    @property
    def age(self) -> float:
        """Seconds since it was put."""
        return time.monotonic() - self._since

    def result(self, within: float) -> T | None:
        """Return the answer; ``None`` when it failed, or did not come within so many seconds since it was put."""
        self.done.wait(max(0.0, within - self.age))
        return self._answer

    def put(self) -> None:
        """Ask; who calls this tells that it is done."""
        try:
            self._answer = self._question()
            self.succeeded = True
        except Exception:  # noqa: BLE001, S110 - whatever goes wrong, the answer is no
            pass


class _Asker(threading.Thread):
    """Asks, one question after the other; a daemon, so that a server that hangs cannot keep the process from ending."""

    def __init__(self, first: Attempt[object], linger: float, goodbye: Callable[[], None] | None) -> None:
        super().__init__(name="taskqueue-probe", daemon=True)
        self._handed: SimpleQueue[Attempt[object]] = SimpleQueue()
        self._handed.put(first)
        self._linger = linger
        self._goodbye = goodbye
        self._state = threading.Lock()
        self._is_free = False

    def take(self, attempt: Attempt[object]) -> bool:
        """Take a question over; return whether this thread has time, and is there: a fork leaves threads behind."""
        with self._state:
            if not self._is_free or not self.is_alive():
                return False
            self._is_free = False
            self._handed.put(attempt)
            return True

    def run(self) -> None:
        while attempt := self._next():
            attempt.put()
            with self._state:
                self._is_free = True
            attempt.done.set()
        if self._goodbye:
            self._goodbye()

    def _next(self) -> Attempt[object] | None:
        try:
            return self._handed.get(timeout=self._linger)
        except Empty:
            with self._state:
                if self._is_free:
                    self._is_free = False
                    return None
            return self._handed.get()  # handed over in this moment
