"""What a worker's loop does about errors: a moment's pause, and one line in the log."""

from __future__ import annotations

import logging
import time

from django.db import Error as DatabaseError
from django.db import connections

from queue_app.exceptions import IndexUnavailable

logger = logging.getLogger("taskqueue")

#: Seconds between tries while PostgreSQL or Redis does not answer, or the index is rebuilt.
RETRY_SECONDS = 0.5


class ErrorBackoff:
    """Remembers until when to wait, and what was last said about why."""

    def __init__(self, worker_name: str) -> None:
        self._worker_name = worker_name
        self._not_before = 0.0  # monotonic time before which nothing is tried again
        self._text = ""

    @property
    def pause(self) -> float:
        """Seconds to wait before the next try; 0 when there is no backoff."""
        return max(0.0, self._not_before - time.monotonic())

    def begin(self) -> None:
        """Wait for a moment from now on."""
        self._not_before = time.monotonic() + RETRY_SECONDS

    def mended(self) -> None:
        """Try again at once: the cause is gone."""
        self._not_before = 0.0

    def forget(self) -> None:
        """Log the next error even if it is the same as the last: something has worked in between."""
        self._text = ""

    def complain(self, error: Exception) -> None:
        """Log what went wrong, once while it stays the same; drop connections that may be broken."""
        if not isinstance(error, IndexUnavailable):
            connections.close_all()
        text = " ".join(str(error).split())
        if text == self._text:
            return
        self._text = text
        if isinstance(error, IndexUnavailable | DatabaseError):
            logger.warning("%s; trying again", text)
        else:
            logger.error("worker %s stumbled; trying again", self._worker_name, exc_info=error)
