"""The owner of the guard: starts it and holds the pipe that keeps it alive."""

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Self

from .data_directory import EmbeddedError, end_process

PROJECT = Path(__file__).resolve().parent.parent.parent
STOP_SECONDS = 60.0


class EmbeddedServers:
    """PostgreSQL and Valkey until the end of the `with` block or of this process.

    `database_url` and `redis_url` are "" for a server that is not in `only`.
    """

    def __init__(
        self, directory: Path, *, only: Sequence[str] = ("postgres", "valkey"), throwaway: bool = False
    ) -> None:
        """Prepare the servers, with data, ports and passwords in `directory`.

        `throwaway` servers are fast and not durable, and their directory is removed at the end.
        """
        self.directory = directory
        self.database_url = ""
        self.redis_url = ""
        self._only = only
        self._throwaway = throwaway
        self._guard: subprocess.Popen[str] | None = None

    def start(self) -> Self:
        """Start the servers and wait until they answer; raise `EmbeddedError`."""
        self.directory.mkdir(mode=0o711, parents=True, exist_ok=True)
        command = [sys.executable, "-m", "taskqueue_project.embedded", str(self.directory.resolve())]
        command += [part for kind in self._only for part in ("--only", kind)]
        command += ["--throwaway"] if self._throwaway else []
        with (self.directory / "guard.log").open("w+") as log:
            self._guard = subprocess.Popen(
                command,
                cwd=PROJECT,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                # Outside the terminal's process group: Ctrl-C must stop the clients before the servers.
                start_new_session=True,
            )
            assert self._guard.stdout is not None  # noqa: S101 - for mypy: it is a pipe
            line = self._guard.stdout.readline()
            if not line:
                log.seek(0)
                message = f"the guard of the embedded servers ended:\n{log.read()}"
                self.stop()
                raise EmbeddedError(message)
        addresses = json.loads(line)
        if "error" in addresses:
            self.stop()
            raise EmbeddedError(addresses["error"])
        self.database_url = addresses.get("postgres", "")
        self.redis_url = addresses.get("valkey", "")
        return self

    def stop(self) -> None:
        """Stop the servers and wait until they have ended."""
        if self._guard is None:
            return
        for pipe in (self._guard.stdin, self._guard.stdout):
            if pipe is not None:
                pipe.close()
        end_process(self._guard, STOP_SECONDS)
        self._guard = None

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()
