"""End a process in which no Python code runs any more, or that does not end when it must; measure its freezes."""

import faulthandler
import logging
import math
import os
import select
import signal
import threading
import time
import warnings
from contextlib import suppress
from typing import Final, NoReturn

from queue_app.workers.health import LoopHeartbeat
from queue_app.workers.lifecycle import STDERR, Exit, Shutdown, essential_thread, signals_held

logger = logging.getLogger("taskqueue")

#: Number of checks in a row without a sign of life after which a process is ended; after twice as many it is killed.
CHECKS: Final = 5
#: Maximum interval between two signs of life.
BEAT_SECONDS: Final = 1.0
#: Longest gap between two signs of life that counts as time in which the process ran.
MAX_GAP_SECONDS: Final = 5.0
#: Time after the end of the grace period in which a worker reports and gives back its tasks.
EXIT_SECONDS: Final = 10.0


class LifeWatch:
    """Counts the checks in which another process showed no life.

    It counts checks, not seconds: the system may freeze both processes (a container that is paused, Ctrl-Z). When
    they continue, the other process has the time of several checks to show that it lives.
    """

    def __init__(self, heartbeat: LoopHeartbeat) -> None:
        self._heartbeat = heartbeat
        self._seen = 0.0
        self._missed = 0

    def check(self) -> signal.Signals | None:
        """Return the signal to send: SIGALRM prints the stacks and ends the process; SIGKILL ends a stopped one."""
        at = self._heartbeat.at
        self._missed = self._missed + 1 if at and at == self._seen else 0
        self._seen = at
        if self._missed > 2 * CHECKS:
            return signal.SIGKILL
        return signal.SIGALRM if self._missed == CHECKS else None


class ProcessGuard:
    """Lets another process see that this one lives; ends this one if it has not ended long after it should.

    A task that calls C code which never releases Python's lock stops all threads. The process then neither reports that
    it lives nor handles signals. So a thread shows signs of life, and another process checks them: the supervisor, or
    without one a fork of this process. That process sends SIGALRM: faulthandler writes the stack of each thread to the
    standard error, and the process ends.
    """

    def __init__(self, seconds: float, shutdown: Shutdown) -> None:
        self.heartbeat = LoopHeartbeat()
        self._seconds = seconds
        self._shutdown = shutdown
        self._watcher = 0
        self._end = -1  # the end of a pipe: the watcher ends when this process no longer has it
        self._beat = (math.inf, 0.0)  # monotonic time of the last beat, seconds frozen until then
        self._taken = 0.0  # seconds that ``take_frozen`` has returned
        self._stop = threading.Event()
        self._thread = essential_thread(self._run, "guard")

    def __enter__(self) -> None:
        """Start to show signs of life. Called in the main thread."""
        if not faulthandler.is_enabled():
            faulthandler.enable(STDERR)  # writes the stacks when the process crashes, too
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        faulthandler.register(signal.SIGALRM, STDERR, all_threads=True, chain=True)
        self.heartbeat.beat()
        self._beat = (time.monotonic(), 0.0)
        self._thread.start()

    def __exit__(self, *_error: object) -> None:
        self._stop.set()
        self._thread.join()
        if self._watcher:
            os.close(self._end)
            with suppress(ProcessLookupError, ChildProcessError):  # a task may have collected it
                os.kill(self._watcher, signal.SIGKILL)
                os.waitpid(self._watcher, 0)
        faulthandler.unregister(signal.SIGALRM)

    def take_frozen(self) -> float:
        """Return for how many seconds the process has been frozen since the last call, if it was at least 1 s."""
        frozen = self._frozen_until(time.monotonic()) - self._taken
        if frozen < 1:
            return 0.0
        self._taken += frozen
        return frozen

    def _frozen_until(self, now: float) -> float:
        at, frozen = self._beat
        return frozen + max(0.0, now - at - MAX_GAP_SECONDS)

    def _run(self) -> None:
        every, overdue = min(self._seconds / CHECKS, BEAT_SECONDS), 0.0
        while not self._stop.wait(every):
            self.heartbeat.beat()
            now = time.monotonic()
            self._beat = (now, self._frozen_until(now))
            overdue += every if self._shutdown.overdue else 0.0
            if overdue > EXIT_SECONDS:
                logger.error("the worker does not end by itself; it ends without giving back its tasks")
                faulthandler.dump_traceback(STDERR)
                os._exit(Exit.CRASHED)

    def fork_watcher(self) -> None:
        """Fork the process that watches this one, which must not have threads yet. It ends with this one."""
        pid, (alive, self._end) = os.getpid(), os.pipe()
        self.heartbeat.beat()
        with signals_held(), warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # the health monitor's thread holds no lock of ours
            try:
                self._watcher = os.fork()
            except OSError as error:  # no memory, or too many processes
                logger.warning("nothing ends this worker if it is stuck: %s", error)
            if os.getpid() != pid:  # signals stay held; it stays in the group, which Ctrl-Z stops as a whole
                self._watch(pid, alive)
        os.close(alive)

    def _watch(self, pid: int, alive: int) -> NoReturn:
        """End the process ``pid`` if it is stuck, until it closes its end of the pipe ``alive``."""
        os.close(self._end)
        watch = LifeWatch(self.heartbeat)
        try:
            while not select.select([alive], [], [], self._seconds / CHECKS)[0]:
                if (number := watch.check()) and os.getppid() == pid:
                    os.kill(pid, number)
        finally:
            os._exit(0)
