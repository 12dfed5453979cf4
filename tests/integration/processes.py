"""Start real processes of the project, watch them, and leave none behind."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil

from tests.support.waiting import PATIENCE, until

ROOT = Path(__file__).resolve().parent.parent.parent
DOCKERFILE = ROOT / "taskqueue_project/deploy/Dockerfile"
MANAGE = (str(ROOT / "manage.py"),)
SETTINGS = "tests.integration.settings"
#: The same for processes that serve no pages.
LEAN = "tests.integration.lean"


def index_comes_to_agree() -> None:
    """Wait until the index says what the rows say: processes that live tell it after they have written."""
    from tests.support.engine import assert_index_agrees  # noqa: PLC0415 - models: the faults set Django up later

    last: list[AssertionError] = []

    def agrees() -> bool:
        try:
            assert_index_agrees()
        except AssertionError as error:
            last[:] = [error]
            return False
        return True

    try:
        until(agrees, "index and rows agree")
    except AssertionError as error:
        raise error from last[0]


class Process:
    """One command, of ``manage.py`` unless said otherwise, and everything it has started."""

    def __init__(self, env: dict[str, str], log: Path, *arguments: str, program: tuple[str, ...] = MANAGE) -> None:
        self.log_path = log
        self.arguments = arguments
        with log.open("wb") as output:
            self._popen = subprocess.Popen(
                [sys.executable, *program, *arguments],
                env=env,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self.pid = self._popen.pid

    @property
    def log(self) -> str:
        """What it has printed so far."""
        return self.log_path.read_text(encoding="utf-8", errors="replace")

    @property
    def alive(self) -> bool:
        """Whether it still runs."""
        return self._popen.poll() is None

    def children(self) -> list[int]:
        """Return the pids of its living children."""
        found = psutil.Process(self.pid).children()
        return [child.pid for child in found if child.status() != psutil.STATUS_ZOMBIE]

    def send(self, number: int) -> None:
        """Send it a signal."""
        self._popen.send_signal(number)

    def exit_code(self, seconds: float = PATIENCE) -> int:
        """Wait for its end and return the code."""
        try:
            return self._popen.wait(seconds)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"{self.arguments} does not end:\n{self.log}") from None

    def kill(self) -> None:
        """End it and all that it started, without asking."""
        family = [self.pid]
        if self.alive:
            family += [child.pid for child in psutil.Process(self.pid).children(recursive=True)]
        for pid in family:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._popen.wait(PATIENCE)
        until(self._has_ended_its_session, f"all that {self.arguments} started has ended")

    def _has_ended_its_session(self) -> bool:
        """Kill what is left of its session, forked while it was being killed; return whether nothing was left."""
        left = [pid for pid in psutil.pids() if _is_alive_in(self.pid, pid)]
        for pid in left:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return not left


def _is_alive_in(session: int, pid: int) -> bool:
    try:
        return os.getsid(pid) == session and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except (ProcessLookupError, psutil.NoSuchProcess):
        return False


class Fleet:
    """The processes of one test, on its database and index."""

    def __init__(self, env: dict[str, str], folder: Path) -> None:
        self.env = env | {"DJANGO_SETTINGS_MODULE": SETTINGS, "PYTHONUNBUFFERED": "1"}
        self.folder = folder
        self.processes: list[Process] = []

    def start(self, *arguments: str, program: tuple[str, ...] = MANAGE, **env: str) -> Process:
        """Start a worker or a scheduler by its ``manage.py`` command; keywords go into its environment."""
        env = self.env | {"DJANGO_SETTINGS_MODULE": LEAN} | env
        return self._add(Process(env, self._next_log(), *arguments, program=program))

    def _next_log(self) -> Path:
        return self.folder / f"process-{len(self.processes)}.log"

    def _add(self, process: Process) -> Process:
        self.processes.append(process)
        return process

    def celery(self) -> Process:
        """Start Celery, worker and beat, with the project's upkeep in a hurry."""
        schedule = self.folder / f"beat-{len(self.processes)}"
        options = ("-A", "tests.integration.app.upkeep", "worker", "--beat", "--concurrency", "1", "-l", "INFO")
        arguments = (*options, "--schedule", str(schedule))
        return self._add(Process(self.env, self._next_log(), *arguments, program=("-m", "celery")))

    def web(self, address: str, **env: str) -> Process:
        """Start a web process; keywords go into its environment."""
        arguments = ("taskqueue_project.wsgi:application", "--threads", "4", "--bind", address)
        return self._add(Process(self.env | env, self._next_log(), *arguments, program=("-m", "gunicorn")))

    def shipped_web(self, port: int) -> Process:
        """Start a web process by the command of the image, at a port of this machine."""
        words = json.loads(re.search(r"^CMD (\[[^\]]*\])", DOCKERFILE.read_text().replace("\\\n", ""), re.MULTILINE)[1])
        replaced = {"0.0.0.0": "127.0.0.1", "8000": str(port)}  # noqa: S104 - not bound here
        arguments = [replaced.get(word, word) for word in words[1:]]
        return self._add(Process(self.env, self._next_log(), *arguments, program=("-m", words[0])))

    def worker(self, *arguments: str, heartbeat: float = 60.0, **env: str) -> Process:
        """Start ``runworker``."""
        settings = {"TASKQUEUE__WORKER__HEARTBEAT_SECONDS": str(heartbeat)}
        return self.start("runworker", *arguments, **(settings | env))

    def scheduler(self, **env: str) -> Process:
        """Start ``runscheduler``, in a hurry."""
        hurry: dict[str, Any] = {"DUE": 0.1, "REAP": 0.3, "RECONCILE": 0.5, "FALLBACK": 1, "LEADER": 3}
        settings = {f"TASKQUEUE__SCHEDULER__{name}_SECONDS": str(value) for name, value in hurry.items()}
        return self.start("runscheduler", **(settings | env))

    def stop(self) -> None:
        """End all of them."""
        for process in self.processes:
            process.kill()


@contextmanager
def fleet_on(env: dict[str, str], folder: Path) -> Iterator[Fleet]:
    """Yield a fleet, and end it with the block; print what its processes have said if the block fails."""
    made = Fleet(env, folder)
    try:
        yield made
    except BaseException:
        for process in made.processes:
            print(*process.arguments, "is alive" if process.alive else "has ended", process.log[-4_000:], sep="\n")
        raise
    finally:
        made.stop()


def lines(log: str) -> list[str]:
    """Return the lines that tasks have written."""
    path = Path(log)
    return path.read_text(encoding="utf-8").splitlines() if path.exists() else []
