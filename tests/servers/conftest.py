"""Several Valkey processes that make up a Sentinel or a Cluster set-up, on free ports, without persistence."""

# ruff: noqa: F401 - fixtures are used by name
import shutil
import signal
import socket
import subprocess
import tempfile
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest
import redis

from taskqueue_project.embedded.valkey import Valkey
from tests.queue_app.conftest import forgetful_process, rows
from tests.queue_app.services.conftest import transactional_db
from tests.support.waiting import until


class Servers:
    """Starts Valkey processes; ``kill`` ends one without a goodbye."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._running: dict[int, subprocess.Popen] = {}

    def start(self, *arguments: str, config: str = "") -> int:
        """Start one and return its port once it answers."""
        port = _free_port()
        place = self.folder / str(port)
        place.mkdir()
        path = place / "valkey.conf"
        path.write_text(f"bind 127.0.0.1\nport {port}\ndir {place}\nsave ''\nappendonly no\n{config}\n")
        command = [str(Valkey.binary.func(None)), str(path), *arguments]
        with (place / "log").open("wb") as log:
            self._running[port] = subprocess.Popen(command, stdout=log, stderr=log)
        until(lambda: _answers(port), f"Valkey at {port} answers")
        return port

    def signal(self, port: int, number: int) -> None:
        """Send a signal to the one at this port."""
        self._running[port].send_signal(number)

    def kill(self, port: int) -> None:
        """End one without a goodbye."""
        process = self._running.pop(port)
        process.kill()
        process.wait()

    def stop(self) -> None:
        """End all."""
        for process in self._running.values():
            process.send_signal(signal.SIGCONT)
            process.kill()
            process.wait()


def client(port: int) -> redis.Redis:
    """Return a plain client."""
    return redis.Redis(port=port, socket_timeout=10, decode_responses=True)


def _answers(port: int) -> bool:
    with suppress(redis.RedisError), client(port) as found:
        return found.ping()
    return False


def _free_port() -> int:
    # below the usual ephemeral ports, and with room for the bus of a cluster, which is 10 000 above
    while True:
        with socket.socket() as one, socket.socket() as other:
            one.bind(("127.0.0.1", 0))
            port = 20_000 + one.getsockname()[1] % 12_000
            with suppress(OSError), socket.socket() as first:
                first.bind(("127.0.0.1", port))
                other.bind(("127.0.0.1", port + 10_000))
                return port


@pytest.fixture
def servers():
    """Start Valkey processes that end with the test."""
    folder = Path(tempfile.mkdtemp(prefix="taskqueue-servers-"))
    with ExitStack() as stack:
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        found = Servers(folder)
        stack.callback(found.stop)
        yield found
