"""Report to systemd and load balancers whether the loops of this process and its children turn."""

import logging
import mmap
import os
import socket
import struct
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Final

logger = logging.getLogger("taskqueue")

_TIME: Final = struct.Struct("d")
_REPLY: Final = (
    "HTTP/1.1 {status}\r\nContent-Type: application/json\r\nContent-Length: {size}\r\nConnection: close\r\n\r\n"
)
CHECK_SECONDS: Final = 1.0
#: Time beyond three heartbeats after which a loop that has not turned, or a process that has not run, counts as stuck.
STALE_SECONDS: Final = 5.0


def stale_seconds(heartbeat_seconds: float) -> float:
    """Return the time after which a process that shows no life counts as stuck."""
    return 3 * heartbeat_seconds + STALE_SECONDS


class LoopHeartbeat:
    """When a loop last turned, in memory that a process shares with its forks."""

    def __init__(self) -> None:
        self._memory = mmap.mmap(-1, _TIME.size)

    def beat(self) -> None:
        """Record that the loop turns now."""
        _TIME.pack_into(self._memory, 0, time.monotonic())

    def reset(self) -> None:
        """Forget the last turn, because a new process starts."""
        _TIME.pack_into(self._memory, 0, 0.0)

    @property
    def at(self) -> float:
        """Monotonic time of the last turn; 0 before the first."""
        return float(_TIME.unpack_from(self._memory, 0)[0])

    @property
    def age(self) -> float | None:
        """Seconds since the last turn; ``None`` before the first."""
        at = self.at
        return time.monotonic() - at if at else None


class PortUnavailable(Exception):
    """The server for health checks cannot listen on its port."""


class HealthMonitor:
    """Checks loop heartbeats; answers ``/livez``, and notifies systemd from a thread of its own."""

    def __init__(self, heartbeats: Sequence[LoopHeartbeat], stale_seconds: float, port: int | None) -> None:
        self._heartbeats = heartbeats
        self._stale = stale_seconds
        self._port = port
        self._ready = False
        watchdog = os.environ.get("WATCHDOG_USEC", "")
        self._every = min(CHECK_SECONDS, int(watchdog) / 2e6) if watchdog.isdigit() and int(watchdog) else CHECK_SECONDS

    def start(self) -> None:
        """Start the threads that the options and the environment ask for. Raises ``PortUnavailable``."""
        if self._port is not None:
            listener = _listener(self._port)
            threading.Thread(target=self._serve, args=(listener,), name="livez", daemon=True).start()
        if os.environ.get("NOTIFY_SOCKET"):
            threading.Thread(target=self._watch, name="watchdog", daemon=True).start()

    @property
    def alive(self) -> bool:
        """Whether every loop has started and turns."""
        return all(age is not None and age < self._stale for age in (heartbeat.age for heartbeat in self._heartbeats))

    def check(self) -> None:
        """Notify systemd once, if all loops turn."""
        if self.alive:
            notify_systemd("WATCHDOG=1" if self._ready else "READY=1")
            self._ready = True

    def _watch(self) -> None:
        while True:
            self.check()
            time.sleep(self._every)

    def _serve(self, listener: socket.socket) -> None:
        while True:
            with suppress(OSError):
                connection, _ = listener.accept()
                with connection:
                    connection.settimeout(2)
                    connection.sendall(self.reply(connection.recv(2048)))

    def reply(self, request: bytes) -> bytes:
        """Return the response to an HTTP request."""
        words = request.split(b" ", 2)
        if len(words) < 2 or words[1].split(b"?")[0].rstrip(b"/") != b"/livez":  # noqa: PLR2004
            status, body = "404 Not Found", b'{"status":"not found"}'
        elif self.alive:
            status, body = "200 OK", b'{"status":"ok"}'
        else:
            status, body = "503 Service Unavailable", b'{"status":"not ok"}'
        return _REPLY.format(status=status, size=len(body)).encode() + body


def _listener(port: int) -> socket.socket:
    try:
        return socket.create_server(("", port))
    except OSError as error:
        raise PortUnavailable(f"port {port} cannot be used: {error.strerror}") from None


def notify_systemd(state: str) -> None:
    """Send a state to systemd (sd_notify); do nothing if systemd did not start this process."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if address:
        with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sender:
            sender.connect(f"\0{address[1:]}" if address.startswith("@") else address)
            sender.sendall(state.encode())
