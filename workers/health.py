"""Tell a service manager and a load balancer whether the claim loops turn, not merely whether the processes exist."""

from __future__ import annotations

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
LOOK_SECONDS: Final = 1.0


class LoopHeartbeat:
    """When a loop last turned, in memory that a process shares with those that it forks."""

    def __init__(self) -> None:
        self._memory = mmap.mmap(-1, _TIME.size)

    def beat(self) -> None:
        """Note that the loop turns now."""
        _TIME.pack_into(self._memory, 0, time.monotonic())

    def reset(self) -> None:
        """Forget it: another process begins."""
        _TIME.pack_into(self._memory, 0, 0.0)

    @property
    def age(self) -> float | None:
        """Seconds since it turned; ``None`` when it has not begun."""
        at = _TIME.unpack_from(self._memory, 0)[0]
        return time.monotonic() - at if at else None


class HealthMonitor:
    """Looks at loop_heartbeats in a thread of its own; says what it sees to systemd and over HTTP."""

    def __init__(self, loop_heartbeats: Sequence[LoopHeartbeat], stale_seconds: float, port: int | None) -> None:
        self._loop_heartbeats = loop_heartbeats
        self._stale = stale_seconds
        self._port = port
        self._ready = False
        watchdog = os.environ.get("WATCHDOG_USEC", "")
        self._every = min(LOOK_SECONDS, int(watchdog) / 2e6) if watchdog.isdigit() and int(watchdog) else LOOK_SECONDS

    def start(self) -> None:
        """Begin, if anybody wants to know. Raises ``OSError`` when the port cannot be had."""
        if self._port is not None:
            listener = socket.create_server(("", self._port))
            threading.Thread(target=self._serve, args=(listener,), name="livez", daemon=True).start()
        if os.environ.get("NOTIFY_SOCKET"):
            threading.Thread(target=self._watch, name="watchdog", daemon=True).start()

    @property
    def alive(self) -> bool:
        """Whether every loop has begun and turns."""
        return all(
            age is not None and age < self._stale
            for age in (loop_heartbeat.age for loop_heartbeat in self._loop_heartbeats)
        )

    def look(self) -> None:
        """Tell systemd once, as far as there is something good to tell."""
        if self.alive:
            notify("WATCHDOG=1" if self._ready else "READY=1")
            self._ready = True

    def _watch(self) -> None:
        while True:
            self.look()
            time.sleep(self._every)

    def _serve(self, listener: socket.socket) -> None:
        while True:
            with suppress(OSError):
                connection, _ = listener.accept()
                with connection:
                    connection.settimeout(2)
                    connection.sendall(self.reply(connection.recv(2048)))

    def reply(self, request: bytes) -> bytes:
        """Return the answer to a request."""
        words = request.split(b" ", 2)
        if len(words) < 2 or words[1].split(b"?")[0].rstrip(b"/") != b"/livez":  # noqa: PLR2004
            status, body = "404 Not Found", b'{"status":"not found"}'
        elif self.alive:
            status, body = "200 OK", b'{"status":"ok"}'
        else:
            status, body = "503 Service Unavailable", b'{"status":"not ok"}'
        return _REPLY.format(status=status, size=len(body)).encode() + body


def notify(state: str) -> None:
    """Tell systemd something (sd_notify); nothing where nobody listens."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if address:
        with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sender:
            sender.connect(f"\0{address[1:]}" if address.startswith("@") else address)
            sender.sendall(state.encode())
