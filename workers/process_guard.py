"""End a process in which no Python code runs any more, or that does not end when it must."""

import faulthandler
import logging
import os
import signal
import threading
from typing import Final

from queue_app.workers.health import LoopHeartbeat
from queue_app.workers.lifecycle import STDERR, Exit, Shutdown, essential_thread

logger = logging.getLogger("taskqueue")

#: The timer is wound up this many times before it would expire.
WINDS: Final = 5
#: Time after the end of the grace period in which a worker reports and gives back its tasks.
EXIT_SECONDS: Final = 10.0


class ProcessGuard:
    """Ends the process when its threads have not run for ``seconds``, or when it has not ended long after it should.

    A task that calls C code which never releases Python's lock stops all threads. The process then neither reports that
    it lives nor handles signals. So a thread winds up a timer of the system again and again. When the timer expires,
    faulthandler writes the stack of each thread to the standard error, and SIGALRM ends the process.
    """

    def __init__(self, seconds: float, shutdown: Shutdown) -> None:
        self.heartbeat = LoopHeartbeat()
        self._seconds = seconds
        self._shutdown = shutdown
        self._stop = threading.Event()
        self._thread = essential_thread(self._run, "guard")

    def __enter__(self) -> None:
        """Start to watch. Called in the main thread."""
        if not faulthandler.is_enabled():
            faulthandler.enable(STDERR)  # writes the stacks when the process crashes, too
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        faulthandler.register(signal.SIGALRM, STDERR, all_threads=True, chain=True)
        self._wind_up()
        self._thread.start()

    def __exit__(self, *_error: object) -> None:
        self._stop.set()
        self._thread.join()
        signal.setitimer(signal.ITIMER_REAL, 0)
        faulthandler.unregister(signal.SIGALRM)

    def _run(self) -> None:
        while not self._stop.wait(min(self._seconds / WINDS, EXIT_SECONDS)):
            self._wind_up()
            if self._shutdown.overdue > EXIT_SECONDS:
                logger.error("the worker does not end by itself; it ends without giving back its tasks")
                faulthandler.dump_traceback(STDERR)
                os._exit(Exit.CRASHED)

    def _wind_up(self) -> None:
        self.heartbeat.beat()
        signal.setitimer(signal.ITIMER_REAL, self._seconds)
