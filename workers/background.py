"""The threads of a worker beside its loop.

One reports that the worker lives, one waits for wake-up calls, and one may be a scheduler.
"""

import logging
import os
import threading
import time
import uuid
from collections.abc import Callable
from contextlib import suppress
from typing import Protocol

from django.db import Error as DatabaseError, connections

from queue_app.exceptions import IndexUnavailable, in_one_line
from queue_app.index import WorkerMessage
from queue_app.telemetry import log_error
from queue_app.workers.lifecycle import essential_thread
from queue_app.workers.transport.base import Transport

logger = logging.getLogger("taskqueue")

#: Maximum length of one wait. The worker then claims once, in case it missed a call.
WAIT_SECONDS = 8.0
RETRY_SECONDS = 1.0
#: Pause after a call. Python runs one thread at a time, and the thread that claims should run first.
REST_SECONDS = 0.001


class Heartbeat:
    """Calls ``beat`` every ``seconds``.

    Calls ``on_lost`` when ``beat`` returns false (the worker was declared dead), or when the ``supervisor`` process
    that started this one is gone.
    """

    def __init__(
        self, seconds: float, beat: Callable[[], bool], on_lost: Callable[[str], None], supervisor: int | None = None
    ) -> None:
        self._seconds = seconds
        self._beat = beat
        self._on_lost = on_lost
        self._turn = threading.Event()
        self._stopping = False
        self._is_failing = False
        self._supervisor = supervisor
        self._thread = essential_thread(self._run, "heartbeat")

    def start(self) -> None:
        """Start the thread; the first heartbeat is due after one interval."""
        self._thread.start()

    def stop(self) -> None:
        self._stopping = True
        self._turn.set()
        self._thread.join(timeout=5)

    def hurry(self) -> None:
        """Send the next heartbeat now."""
        self._turn.set()

    def run_once(self) -> bool:
        """Send one heartbeat; return false if the worker was declared dead."""
        try:
            if not self._beat():
                self._on_lost("it was declared dead")
                return False
        except (DatabaseError, IndexUnavailable) as error:  # over HTTP, the server cannot be reached
            if not self._is_failing:
                server = "PostgreSQL: " if isinstance(error, DatabaseError) else ""
                log_error(error, "heartbeat failed: %s%s; trying again", server, in_one_line(error))
            self._is_failing = True
            connections.close_all()
        except Exception:  # without this thread the worker would be declared dead
            logger.exception("heartbeat failed")
        else:
            if self._is_failing:
                logger.info("heartbeats succeed again")
            self._is_failing = False
        return True

    def _run(self) -> None:
        try:
            while True:
                self._turn.wait(min(self._seconds, RETRY_SECONDS) if self._is_failing else self._seconds)
                self._turn.clear()
                if self._stopping:
                    return
                if not self.run_once():
                    return
                if self._supervisor is not None and os.getppid() != self._supervisor:
                    self._on_lost("its supervisor is gone")
                    return
        finally:
            connections.close_all()


class SchedulerThread:
    """A scheduler in the process of a worker: of several, one leads. It saves the memory of a process of its own."""

    def __init__(self) -> None:
        from queue_app.workers.scheduler import Scheduler  # noqa: PLC0415 - other workers need nothing of it

        self._scheduler = Scheduler(with_maintenance=True)
        self._thread = essential_thread(self._scheduler.run_until_stopped, "scheduler")

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Let the thread end after its current job, and another scheduler lead."""
        self._scheduler.stop()
        self._thread.join(timeout=5)


class WakeHandler(Protocol):
    """The type of ``on_wake``."""

    def __call__(self, *, called: bool) -> None:
        """Handle a call, or a wait that ended without one."""


class WakeListener:
    """Calls ``on_wake`` for each wake-up call, and with ``called=False`` if it may have missed one.

    Calls ``on_notification`` first if a row of the worker has changed.
    """

    def __init__(
        self,
        worker_id: uuid.UUID,
        transport: Transport,
        on_wake: WakeHandler,
        on_notification: Callable[[], object] = lambda: None,
    ) -> None:
        self._worker_id = worker_id
        self._transport = transport
        self._on_wake = on_wake
        self._on_notification = on_notification
        self._stopping = False
        self._thread = essential_thread(self._run, "wake-listener")

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Let the thread end after the current wait; the caller need not wait for it."""
        self._stopping = True

    def run_once(self) -> None:
        """Wait for one call."""
        call: WorkerMessage | None = None
        rest = 0.0
        try:
            call = self._transport.wait_for_wake(self._worker_id, WAIT_SECONDS)
        except IndexUnavailable as error:
            rest = RETRY_SECONDS
            with suppress(DatabaseError):
                if self._transport.leave_redis(str(self._worker_id), error):
                    rest = 0.0
            connections.close_all()  # this thread needs none else
        except Exception:  # without this thread the worker would hear no calls
            logger.exception("waiting for a wake-up call failed")
            rest = RETRY_SECONDS
        if call is WorkerMessage.NOTIFICATION:
            self._on_notification()
        self._on_wake(called=bool(call))
        time.sleep(REST_SECONDS if call else rest)

    def _run(self) -> None:
        while not self._stopping:
            self.run_once()
