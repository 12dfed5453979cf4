"""Run web, scheduler, workers and Celery under a honcho manager, until standard input closes or one of them ends.

Usage: python -m taskqueue_project.quickstart.processes LOGS PORT PREPARED [--verbose]

The environment names the servers. The web process starts at once; the others wait for the file PREPARED, which means
that the database is up to date. Each process writes to LOGS/NAME.log, and with --verbose to the terminal too.
"""

import argparse
import multiprocessing
import os
import shlex
import signal
import sys
import threading
from io import TextIOWrapper
from pathlib import Path
from typing import Any

from honcho.manager import Manager
from honcho.printer import Printer

WEB = "web"
WORKERS = 2
MAX_LOG_BYTES = 10 * 1024 * 1024


def commands(port: int, data: Path) -> dict[str, list[str]]:
    """Return the command line of each process by its name."""
    python, manage = sys.executable, [sys.executable, "manage.py"]
    web = ["gunicorn", "taskqueue_project.wsgi:application", "--bind", f"127.0.0.1:{port}", "--threads", "8"]
    celery = ["celery", "--app", "taskqueue_project", "--quiet", "worker", "--beat", "--pool", "solo"]
    celery += ["--without-gossip", "--without-mingle", "--loglevel", "INFO"]
    celery += ["--schedule", str(data / "celerybeat-schedule")]
    return {
        WEB: [python, "-m", *web, "--access-logfile", "-", "--log-level", "warning"],
        **{f"worker-{n}": [*manage, "runworker", "--name", f"worker-{n}"] for n in range(1, WORKERS + 1)},
        "scheduler": [*manage, "runscheduler"],
        "celery": [python, "-m", *celery],
    }


class LogPrinter(Printer):  # type: ignore[misc]  # honcho publishes no types
    """Write the lines of each process to its own file."""

    def __init__(self, logs: Path, *, verbose: bool) -> None:
        super().__init__(sys.stdout)
        self._logs = logs
        self._verbose = verbose
        self._files: dict[str, TextIOWrapper] = {}

    def write(self, message: Any) -> None:
        data = message.data.decode(errors="replace") if isinstance(message.data, bytes) else message.data
        file = self._files.get(message.name)
        if file is None:
            path = self._logs / f"{message.name}.log"
            if path.exists() and path.stat().st_size > MAX_LOG_BYTES:
                path.replace(path.with_suffix(".log.1"))
            file = self._files[message.name] = path.open("a", buffering=1)
        file.write(data)
        if self._verbose:
            super().write(message)


def main() -> int:
    """Run the processes; return honcho's exit code."""
    parser = argparse.ArgumentParser(prog="python -m taskqueue_project.quickstart.processes")
    parser.add_argument("logs", type=Path)
    parser.add_argument("port", type=int)
    parser.add_argument("prepared", type=Path)
    parser.add_argument("--verbose", action="store_true")
    options = parser.parse_args()
    os.umask(0o077)  # logs and beat's file are the user's own

    # Not fork: this process has a thread, and a forked child could inherit a lock that it holds.
    multiprocessing.set_start_method("forkserver")
    manager = Manager(LogPrinter(options.logs, verbose=options.verbose))
    for name, command in commands(options.port, options.logs.parent).items():
        # The web process only loads code at first, which needs no prepared database.
        wait = "" if name == WEB else f"until [ -e {shlex.quote(str(options.prepared))} ]; do sleep 0.1; done; "
        # exec, so that honcho's signals reach the process and not a shell.
        manager.add_process(name, f"{wait}exec {shlex.join(command)}")
    threading.Thread(target=_end_with_owner, daemon=True).start()
    manager.loop()
    return int(manager.returncode or 0)


def _end_with_owner() -> None:
    """Stop everything when the owner closes the pipe or ends."""
    while os.read(sys.stdin.fileno(), 4096):  # unbuffered: this thread may be reading when Python exits
        pass
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    sys.exit(main())
