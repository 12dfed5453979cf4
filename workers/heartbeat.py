"""The thread that reports at intervals that the worker lives."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable

from django.db import Error as DatabaseError
from django.db import connections

logger = logging.getLogger("taskqueue")


class Heartbeat:
    """Calls ``beat`` every ``seconds``; it returns false if the worker was declared dead.

    Calls ``on_lost`` then, and when the ``supervisor`` process that started this one is gone.
    """

    def __init__(
        self, seconds: float, beat: Callable[[], bool], on_lost: Callable[[str], None], supervisor: int | None = None
    ) -> None:
        self._seconds = seconds
        self._beat = beat
        self._on_lost = on_lost
        self._stop = threading.Event()
        self._supervisor = supervisor
        self._thread = threading.Thread(target=self._run, name="heartbeat", daemon=True)

    def start(self) -> None:
        """Start the thread; the first heartbeat is due after one interval."""
        self._thread.start()

    def stop(self) -> None:
        """Stop the thread."""
        self._stop.set()
        self._thread.join(timeout=5)

    def run_once(self) -> bool:
        """Send one heartbeat; return false if the worker was declared dead."""
        try:
            if not self._beat():
                self._on_lost("it was declared dead")
                return False
        except DatabaseError as error:
            logger.warning("heartbeat failed: %s", " ".join(str(error).split()))
            connections.close_all()
        except Exception:  # without this thread the worker would be declared dead
            logger.exception("heartbeat failed")
        return True

    def _run(self) -> None:
        try:
            while not self._stop.wait(self._seconds):
                if not self.run_once():
                    return
                if self._supervisor is not None and os.getppid() != self._supervisor:
                    self._on_lost("its supervisor is gone")
                    return
        finally:
            connections.close_all()
