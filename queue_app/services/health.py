"""Ask the servers for a sign of life, and give up on them in time.

A server that hangs answers nothing for as long as it likes, and a driver without timeouts
waits as long. So each question is put by a thread of its own, one at a time, and whoever
wants to know waits for it only so long.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from django.db import connections

from queue_app.index import get_index
from queue_app.index.server import pulse
from queue_app.rows import audit
from queue_app.rows.database import alias

#: A question without an answer for so long is given up, and put again.
ABANDON_SECONDS = 10.0
#: The parts of the whole.
DATABASE, INDEX, SCHEDULER = PARTS = ("database", "index", "scheduler")


class Probe[T]:
    """A question to a server, shared by everyone who asks at the same time."""

    def __init__(self, question: Callable[[], T]) -> None:
        self._question = question
        self._lock = threading.Lock()
        self._running: Attempt[T] | None = None

    def ask(self) -> Attempt[T]:
        """Put the question, unless it is being put."""
        with self._lock:
            attempt = self._running
            if attempt is None or attempt.done.is_set() or attempt.age > ABANDON_SECONDS:
                attempt = self._running = Attempt(self._question)
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
        # a daemon, so that a server that hangs cannot keep the process from ending
        threading.Thread(target=self._run, name="taskqueue-probe", daemon=True).start()

    @property
    def age(self) -> float:
        """Seconds since it was put."""
        return time.monotonic() - self._since

    def result(self, within: float) -> T | None:
        """Return the answer; ``None`` when it failed, or did not come within so many seconds since it was put."""
        self.done.wait(max(0.0, within - self.age))
        return self._answer

    def _run(self) -> None:
        try:
            self._answer = self._question()
            self.succeeded = True
        except Exception:  # noqa: BLE001, S110 - whatever goes wrong, the answer is no
            pass
        finally:
            self.done.set()


def _ask_database() -> int:
    """Return the generation of the index that the rows name."""
    try:
        return audit.generation()
    finally:
        connections[alias()].close()  # this thread's own


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
