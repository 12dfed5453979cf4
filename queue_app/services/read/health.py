"""Ask the servers for a sign of life, and give up on them in time."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from queue import Empty, SimpleQueue

from django.db import connections

from queue_app.index import get_index
from queue_app.index.server import pulse
from queue_app.sql import snapshot
from queue_app.sql.database import alias

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


#: The parts of the whole.
DATABASE, INDEX, SCHEDULER = PARTS = ("database", "index", "scheduler")


def _ask_database() -> int:
    """Return the generation of the index that the rows name."""
    try:
        return snapshot.generation()
    finally:
        connections[alias()].close()  # this thread's own; each time anew, for workers must be able to connect as well


database = Probe(_ask_database)
index = Probe(lambda: pulse(get_index()))


@dataclass(frozen=True, slots=True)
class Health:
    """What of the queue works: ``reasons`` are what does not, by the part that they concern."""

    reasons: dict[str, str]

    def word(self, part: str) -> str:
        """Return ok or not ok."""
        return "not ok" if part in self.reasons else "ok"


def look(within: float) -> Health:
    """Return what works, after at most ``within`` seconds."""
    asked, also = database.ask(), index.ask()
    number, beat = asked.result(within), also.result(within)
    reasons: dict[str, str] = {}
    if number is None:
        reasons[DATABASE] = "The database does not answer, or lacks the tables."
    if beat is None:
        reasons[INDEX] = "Redis does not answer: tasks are accepted, and none is started."
    else:
        if beat.state != "ready" or (number is not None and beat.generation != number):
            state = beat.state if beat.state != "ready" else "of another generation than the rows"
            reasons[INDEX] = f"The index is {state}: tasks are accepted, and none is started until it is rebuilt."
        if not beat.led:
            reasons[SCHEDULER] = "No scheduler leads: due tasks, dead workers and repairs wait."
    return Health(reasons)
