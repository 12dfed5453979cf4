"""Base of the two servers: start, wait until ready, stop, and stop a server that a crash left behind."""

import contextlib
import subprocess
import time
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any, ClassVar

import psutil

from .data_directory import DataDirectory, EmbeddedError, end_process

READY_SECONDS = 60.0
STOP_SECONDS = 20.0
LOG_TAIL = 15


class Server(ABC):
    """One server process with one data directory."""

    name: ClassVar[str]
    #: Signal for an orderly stop that closes client connections.
    stop_signal: ClassVar[int]

    def __init__(self, data: DataDirectory, *, durable: bool = True) -> None:
        """Prepare the server; `durable=False` trades safety for speed, for tests."""
        self.data = data
        self.durable = durable
        self.port = 0
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def directory(self) -> Path:
        return self.data.root / self.name

    @property
    def log(self) -> Path:
        return self.data.logs / f"{self.name}.log"

    @abstractmethod
    def prepare(self) -> None:
        """Create the files that the server needs."""

    @abstractmethod
    def command(self) -> list[str]:
        """Return the command line that runs the server in the foreground."""

    @abstractmethod
    def is_ready(self) -> bool:
        """Return whether the server answers clients."""

    @abstractmethod
    def url(self) -> str:
        """Return the address for clients, with the password."""

    def spawn_options(self) -> dict[str, Any]:
        """Return extra arguments for the child process, such as its user."""
        return {}

    def start(self) -> None:
        """Start the server; call `wait_until_ready` afterwards."""
        self._stop_leftover()
        self.prepare()
        self.port = self.data.port(f"{self.name}_port")
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                self.command(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                **self.spawn_options(),
            )
        created = psutil.Process(self.process.pid).create_time()
        self.data.remember(**{f"{self.name}_process": [self.process.pid, created]})

    def wait_until_ready(self) -> None:
        """Block until the server answers; raise `EmbeddedError` with the end of its log if it does not."""
        deadline = time.monotonic() + READY_SECONDS
        while not self.is_ready():
            if not self.is_running():
                raise EmbeddedError(f"{self.name} ended while starting.\n{self._log_tail()}")
            if time.monotonic() > deadline:
                raise EmbeddedError(f"{self.name} was not ready after {READY_SECONDS:.0f} s.\n{self._log_tail()}")
            time.sleep(0.02)

    def is_running(self) -> bool:
        """Return whether the started process is alive."""
        return self.process is not None and self.process.poll() is None

    def stop(self) -> None:
        """Stop the server; kill it if it does not end in time."""
        if self.process is None:
            return
        self.process.send_signal(self.stop_signal)  # no effect on a process that has ended
        end_process(self.process, STOP_SECONDS)
        self.process = None
        self.data.remember(**{f"{self.name}_process": None})

    def _stop_leftover(self) -> None:
        """Stop a server that outlived its guard, which was killed or lacked memory."""
        recorded = self.data.recall(f"{self.name}_process")
        if not recorded:
            return
        pid, created = recorded
        with contextlib.suppress(psutil.NoSuchProcess):
            leftover = psutil.Process(pid)
            # The pid may belong to another process by now; pid and start time together are unique.
            if abs(leftover.create_time() - created) < 1:
                leftover.send_signal(self.stop_signal)
                try:
                    leftover.wait(STOP_SECONDS)
                except psutil.TimeoutExpired:
                    leftover.kill()
                    leftover.wait(STOP_SECONDS)

    def _log_tail(self) -> str:
        lines = self.log.read_text(errors="replace").splitlines()[-LOG_TAIL:] if self.log.exists() else []
        return "\n".join([*lines, f"(log: {self.log})"])
