"""Ask the servers for a sign of life, and give up on them in time.

A server that hangs answers nothing for as long as it likes, and a driver without timeouts
waits as long. So each question is put by a thread of its own, one at a time, and whoever
wants to know waits for it only so long.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from django.db import connections

from queue_app.index import get_index
from queue_app.models import Queue
from queue_app.rows.database import alias

#: A question without an answer for so long is given up, and put again.
ABANDON_SECONDS = 10.0


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


def _ask_database() -> None:
    try:
        Queue.objects.using(alias()).exists()
    finally:
        connections[alias()].close()  # this thread's own


database = Probe(_ask_database)
index = Probe(lambda: get_index().now())
