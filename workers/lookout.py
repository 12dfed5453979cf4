"""The leading scheduler looks whether Redis answers: it confirms what workers find, and lets claims return to Redis.

It looks in a thread of its own, because the jobs of the scheduler may wait for a server that hangs.
"""

import logging
import threading
import time
from collections.abc import Callable
from typing import Final

from django.db import Error as DatabaseError, connections

from queue_app import conf
from queue_app.exceptions import IndexUnavailable, in_one_line
from queue_app.index import redis_index, redis_is_away
from queue_app.services.repair.detour import leave_redis, name_recent, return_to_redis, why_away
from queue_app.services.way import follow, is_detour
from queue_app.sql import workers
from queue_app.workers.lifecycle import essential_thread

logger = logging.getLogger("taskqueue")

#: Time between two looks.
LOOK_SECONDS: Final = 0.5
#: Time for which Redis must have answered every look before claims return to it.
STEADY_SECONDS: Final = 5.0
#: Time after which the leader needs no worker that finds the same.
INSIST_SECONDS: Final = 3.0


class Lookout:
    """Looks for the leader with this token, while ``leads`` says that it leads."""

    def __init__(self, token: str, leads: Callable[[], bool]) -> None:
        self._token = token
        self._leads = leads
        self._away_since: float | None = None  # monotonic
        self._steady_since: float | None = None
        self._has_called = False  # whether the workers know that claims read the rows although Redis answers
        self._has_returned = False
        self._is_over = threading.Event()
        self._thread = essential_thread(self._run, "lookout")

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Let the thread end after its current look."""
        self._is_over.set()

    def run_once(self) -> None:
        """Look once."""
        if conf.get().index != conf.REDIS or not self._leads():
            self._away_since = self._steady_since = None
            return
        refusal, now = why_away(), time.monotonic()
        if not refusal:
            self._away_since = None
            self._steady_since = self._steady_since or now
            if redis_is_away.is_set():
                self._return(now - self._steady_since)
            return
        self._steady_since, self._has_called = None, False
        self._away_since = self._away_since or now
        leave_redis(self._token, IndexUnavailable(refusal), insists=now - self._away_since > INSIST_SECONDS)

    def _return(self, steady_seconds: float) -> None:
        """Return to Redis once it is steady.

        Where other processes have ``INDEX = "rows"``, the first leader without it returns once; then it follows them.
        """
        if not self._has_called:  # workers that wait for Redis hear it again
            self._has_called = True
            redis_index().notify_workers(workers.live())
        if steady_seconds >= STEADY_SECONDS and (is_detour(follow()) or not self._has_returned):
            self._has_returned = return_to_redis() or self._has_returned

    def _run(self) -> None:
        named_at = 0.0
        try:
            while not self._is_over.wait(LOOK_SECONDS):
                try:
                    self.run_once()
                    if redis_is_away.is_set() and time.monotonic() - named_at >= 1:
                        named_at = time.monotonic()
                        name_recent()
                except (DatabaseError, IndexUnavailable) as error:
                    logger.info("the lookout failed: %s", in_one_line(error))
                    connections.close_all()
                except Exception:  # without this thread, claims would not return to Redis
                    logger.exception("the lookout failed")
        finally:
            connections.close_all()
