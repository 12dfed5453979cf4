"""Start the process manager, wait until the web process answers, stop the manager and all its children."""

import contextlib
import http.client
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil

from taskqueue_project.embedded.data_directory import HOST, DataDirectory, end_process

from . import ExitCode, QuickstartError
from .running import running_file

WEB_SECONDS = 60.0
STOP_SECONDS = 20.0


@contextlib.contextmanager
def running_processes(
    project: Path, data: DataDirectory, environment: dict[str, str], port: int, *, verbose: bool
) -> Iterator[subprocess.Popen[bytes]]:
    """Run web, scheduler, workers and Celery; stop all of them at the end."""
    command = [sys.executable, "-m", "taskqueue_project.quickstart.processes"]
    command += [str(data.logs), str(port), str(running_file(data.root))]
    manager = subprocess.Popen(
        [*command, *(["--verbose"] if verbose else [])],
        cwd=project,
        env=environment,
        stdin=subprocess.PIPE,
        # Outside the terminal's process group: Ctrl-C reaches only this process, which stops the others in order.
        start_new_session=True,
    )
    family: list[psutil.Process] = []
    try:
        yield manager
    finally:
        with contextlib.suppress(psutil.NoSuchProcess):
            family = psutil.Process(manager.pid).children(recursive=True)
        assert manager.stdin is not None  # noqa: S101 - for mypy: it is a pipe
        manager.stdin.close()
        end_process(manager, STOP_SECONDS)
        _, alive = psutil.wait_procs(family, timeout=1)
        for process in alive:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()


def wait_for_web(processes: subprocess.Popen[bytes], port: int, data: DataDirectory) -> None:
    """Block until the web process answers."""
    deadline = time.monotonic() + WEB_SECONDS
    while time.monotonic() < deadline:
        if processes.poll() is not None:
            raise QuickstartError(
                ExitCode.PROCESS_ENDED, f"{first_to_end(data)} ended while starting; see {data.logs}."
            )
        connection = http.client.HTTPConnection(HOST, port, timeout=10)
        try:
            connection.request("GET", "/admin/login/")
            if connection.getresponse().status == http.HTTPStatus.OK:
                return
        except OSError:
            pass
        finally:
            connection.close()
        time.sleep(0.05)
    raise QuickstartError(ExitCode.PROCESS_ENDED, f"The web process does not answer; see {data.logs / 'web.log'}.")


def first_to_end(data: DataDirectory) -> str:
    """Return the name of the process that ended first; the manager then stopped the others."""
    lines = (data.logs / "system.log").read_text().splitlines()
    # The log holds earlier sessions too; the last one begins at the last line that reports a start.
    begin = max((number for number, line in enumerate(lines) if " started (pid=" in line), default=0)
    recent = [line.split()[0] for line in lines[begin:] if " stopped (rc=" in line]
    return next(iter(recent), "A process")
