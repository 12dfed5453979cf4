"""Run one worker, or several under a supervisor; restart them when the code has changed, for development."""

import gc
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path

from django.utils.autoreload import iter_all_python_module_files

from queue_app.workers.background import SchedulerThread
from queue_app.workers.health import HealthMonitor, notify_systemd, stale_seconds
from queue_app.workers.lifecycle import Exit
from queue_app.workers.options import WorkerOptions
from queue_app.workers.supervisor import Supervisor
from queue_app.workers.transport.base import Transport
from queue_app.workers.worker import Worker

logger = logging.getLogger("taskqueue")

#: Interval at which the files of the code are checked.
CHECK_SECONDS = 1.0


class Reloader:
    """Calls ``on_change`` once when the file of a module has changed and compiles."""

    def __init__(self, on_change: Callable[[], None]) -> None:
        self._on_change = on_change
        self._seen: dict[Path, float] = {}
        self.changed = False

    def start(self) -> None:
        self.check()
        threading.Thread(target=self._run, name="reload", daemon=True).start()

    def check(self) -> bool:
        """Return whether files have changed and all of these compile."""
        changed: list[Path] = []
        for path in iter_all_python_module_files():
            try:
                at = path.stat().st_mtime
            except OSError:
                continue
            if self._seen.setdefault(path, at) != at:
                changed.append(path)
        for path in changed:
            try:
                compile(path.read_bytes(), path, "exec")
            except (SyntaxError, OSError) as error:
                logger.warning("%s has changed, but does not compile: %s", path, error)
                return False
        if changed:
            logger.info("%s has changed; the worker restarts", ", ".join(map(str, changed)))
        return bool(changed)

    def _run(self) -> None:
        tick = threading.Event()
        while not tick.wait(CHECK_SECONDS):
            if self.check():
                self.changed = True
                self._on_change()
                return


def restart(folder: str) -> None:
    """Replace this process by one with the same command line, in the ``folder`` in which this one began."""
    os.chdir(folder)
    sys.stdout.flush()
    sys.stderr.flush()
    os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])  # noqa: S606 - the command line of this process


def run_workers(
    options: WorkerOptions, transport: Transport, processes: int, *, health_port: int | None, reload: bool
) -> Exit:
    """Run one worker in this process, or several under a supervisor. Raises ``PortUnavailable``."""
    runner: Worker | Supervisor
    folder = os.getcwd()  # noqa: PTH109 - a task may change it
    if processes == 1:
        runner = Worker(options, transport)
        loop_heartbeats = [runner.loop_heartbeat]
    else:
        if options.with_scheduler:
            SchedulerThread()  # imports the jobs of all rooms once, and not in each process
        runner = Supervisor(options, transport, processes)
        loop_heartbeats = runner.loop_heartbeats
    HealthMonitor(loop_heartbeats, stale_seconds(options.heartbeat_seconds), health_port).start()
    reloader = Reloader(lambda: os.kill(os.getpid(), signal.SIGTERM))
    if reload:
        reloader.start()
    gc.collect()
    gc.freeze()  # the collector no longer touches existing objects, so their pages stay shared with the workers
    code = runner.run()
    if code is Exit.REPLACE:
        restart(folder)
    notify_systemd("STOPPING=1")
    if reloader.changed:
        restart(folder)
    return code
