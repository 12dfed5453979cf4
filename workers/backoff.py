"""How a worker's loop reacts to errors: a short pause, a repair where one is possible, and one line in the log."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from django.db import Error as DatabaseError
from django.db import connections

from queue_app.exceptions import IndexNotReady, IndexUnavailable, UnknownProfile

logger = logging.getLogger("taskqueue")

#: Seconds between tries while PostgreSQL or Redis does not answer, or the index is rebuilt.
RETRY_SECONDS = 0.5


class ErrorBackoff:
    """Remembers until when to wait, and the last error that was logged."""

    def __init__(self, worker_name: str) -> None:
        self._worker_name = worker_name
        self._not_before = 0.0  # monotonic time of the next try
        self._text = ""

    @property
    def pause(self) -> float:
        """Seconds to wait before the next try; 0 if nothing is wrong."""
        return max(0.0, self._not_before - time.monotonic())

    def recover(self, error: Exception, register: Callable[[], object], rebuild: Callable[[], object]) -> None:
        """Wait for a moment, unless the cause can be repaired: by ``register`` or ``rebuild``."""
        self._not_before = time.monotonic() + RETRY_SECONDS
        try:
            if isinstance(error, UnknownProfile):
                register()
                self._not_before = 0.0
            elif isinstance(error, IndexNotReady):
                if rebuild() is not None:
                    self._not_before = 0.0
            else:
                self._log(error)
        except Exception as again:  # noqa: BLE001 - the next line logs it
            self._log(again)

    def reset(self) -> None:
        """Log the next error even if it is the same as the last: a turn of the loop succeeded in between."""
        self._text = ""

    def _log(self, error: Exception) -> None:
        """Log an error once while it stays the same; close connections that may be broken."""
        if not isinstance(error, IndexUnavailable):
            connections.close_all()
        text = " ".join(str(error).split())
        if text == self._text:
            return
        self._text = text
        if isinstance(error, IndexUnavailable | DatabaseError):
            logger.warning("%s; trying again", text)
        else:
            logger.error("worker %s failed; trying again", self._worker_name, exc_info=error)
