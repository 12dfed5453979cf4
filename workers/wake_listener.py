"""Waits for wake-up calls of the index, in a thread of its own."""

from __future__ import annotations

import logging
import threading
import time
import uuid
from typing import Protocol

from queue_app.exceptions import IndexUnavailable
from queue_app.workers.transport import wait_for_wake

#: The wait ends by itself after so long, and the worker looks once whether it missed a call.
WAIT_SECONDS = 10.0
RETRY_SECONDS = 1.0
#: So long this thread rests after a call: Python runs one thread at a time, and the one that claims shall be first.
REST_SECONDS = 0.001

logger = logging.getLogger("taskqueue")


class WakeHandler(Protocol):
    """What a waker calls."""

    def __call__(self, *, called: bool) -> None:
        """Take note of a call, or of a wait that ended without one."""


class WakeListener:
    """Calls ``on_wake`` at each wake-up call, and with ``called=False`` when one may have been missed."""

    def __init__(self, worker_id: uuid.UUID, on_wake: WakeHandler) -> None:
        self._worker_id = worker_id
        self._on_wake = on_wake
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="waker", daemon=True)

    def start(self) -> None:
        """Begin to wait."""
        self._thread.start()

    def stop(self) -> None:
        """Let the thread end after the wait under way; nobody needs to wait for it."""
        self._stopping = True

    def run_once(self) -> None:
        """Wait for one call."""
        called = False
        try:
            called = wait_for_wake(self._worker_id, WAIT_SECONDS)
        except IndexUnavailable:
            time.sleep(RETRY_SECONDS)
        except Exception:  # without this thread the worker would be deaf
            logger.exception("waiting for a wake-up call failed")
            time.sleep(RETRY_SECONDS)
        self._on_wake(called=called)
        if called:
            time.sleep(REST_SECONDS)

    def _run(self) -> None:
        while not self._stopping:
            self.run_once()
