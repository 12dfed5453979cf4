"""The directory that holds the servers' data, ports and passwords."""

import fcntl
import json
import os
import secrets
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

HOST = "127.0.0.1"


class EmbeddedError(Exception):
    """An embedded server cannot be started; the message has the reason and the path of the log."""


class DataDirectory:
    """The files under one directory; they survive restarts, and so do the ports and passwords."""

    def __init__(self, root: Path) -> None:
        self.root = root.resolve()
        # Search permission for others: if this process is root, PostgreSQL runs as another user.
        self.root.mkdir(mode=0o711, parents=True, exist_ok=True)
        self.logs.mkdir(exist_ok=True)
        self.logs.chmod(0o700)  # log lines may hold users' data

    @property
    def logs(self) -> Path:
        return self.root / "logs"

    @property
    def _memory(self) -> Path:
        return self.root / "servers.json"

    def remember(self, **values: Any) -> None:
        """Store values for the next start, readable by the owner only."""
        write_private(self._memory, json.dumps(self._recalled() | values, indent=1))

    def recall(self, name: str) -> Any:
        """Return a value stored by an earlier start, or None."""
        return self._recalled().get(name)

    def secret(self, name: str) -> str:
        """Return a password; the first call creates and stores it."""
        value = self.recall(name)
        if not isinstance(value, str):
            # Letters and digits need no quoting in a URL or a configuration file.
            value = secrets.token_hex(24)
            self.remember(**{name: value})
        return value

    def port(self, name: str) -> int:
        """Return the port of the last start if it is still free, else another free port."""
        port = self.recall(name)
        if not isinstance(port, int) or not port_is_free(port):
            port = free_port()
            self.remember(**{name: port})
        return port

    @contextmanager
    def locked(self, name: str, *, wait_seconds: float = 0) -> Iterator[None]:
        """Hold a lock that ends with this process; raise `EmbeddedError` after `wait_seconds` without it."""
        path = self.root / name
        # lockf, not flock: a forked child must not keep the lock after its parent's end.
        with path.open("a+") as file:
            deadline = time.monotonic() + wait_seconds
            while True:
                try:
                    fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except OSError:
                    if time.monotonic() >= deadline:
                        file.seek(0)
                        owner = file.read().strip() or "unknown"
                        raise EmbeddedError(f"{self.root} is in use by process {owner}.") from None
                    time.sleep(0.1)
            file.truncate(0)
            file.write(str(os.getpid()))
            file.flush()
            yield

    def _recalled(self) -> dict[str, Any]:
        try:
            return dict(json.loads(self._memory.read_text()))
        except FileNotFoundError:
            return {}
        except ValueError as error:
            raise EmbeddedError(f"{self._memory} is damaged ({error}); remove {self.root} to start afresh.") from error


def port_is_free(port: int) -> bool:
    """Return whether a server could listen on the port."""
    try:
        # With SO_REUSEADDR, as servers do: the last run's connections in TIME_WAIT do not occupy the port.
        socket.create_server((HOST, port)).close()
    except OSError:
        return False
    return True


def free_port() -> int:
    """Return a port that is free now."""
    with socket.create_server((HOST, 0)) as probe:
        return int(probe.getsockname()[1])


def write_private(path: Path, text: str) -> None:
    """Write a file that only its owner may read, at once for processes that wait for it."""
    fresh = path.with_suffix(".new")
    with os.fdopen(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
        file.write(text)
    fresh.replace(path)


def end_process(process: subprocess.Popen[Any], seconds: float) -> None:
    """Wait for a process that was asked to end; kill it if it still runs after ``seconds``."""
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
