"""The servers of a scene: those of Debian or of the wheels, and PgBouncer in front of PostgreSQL."""

import getpass
import shutil
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cached_property
from pathlib import Path

import psutil

from taskqueue_project.embedded.data_directory import DataDirectory
from taskqueue_project.embedded.postgres import DATABASE, Postgres
from taskqueue_project.embedded.server import Server
from taskqueue_project.embedded.valkey import Valkey
from tests.support.waiting import until

DEBIANS = Path("/usr/lib/postgresql")
#: Options with which a million rows are there soon; no plan depends on them.
HURRIED = ("fsync=off", "max_wal_size=8GB", "autovacuum=off")
#: Options that let the server write each plan into its log.
EXPLAINED = (
    "session_preload_libraries=auto_explain",
    "auto_explain.log_min_duration=0",
    "auto_explain.log_format=json",
)


class StockPostgres(Postgres):
    """PostgreSQL with its defaults: with LLVM, if Debian's."""

    options: tuple[str, ...] = ()

    def command(self) -> list[str]:
        """Set nothing but the address."""
        options = ("listen_addresses=127.0.0.1", "unix_socket_directories=", *self.options)
        arguments = [part for option in options for part in ("-c", option)]
        return [str(self.binaries / "postgres"), "-D", str(self.directory), "-p", str(self.port), *arguments]


class DebianPostgres(StockPostgres):
    """The newest that Debian's packages have installed."""

    locale = ("--locale=C.UTF-8",)
    hurried = ("--no-sync",)  # initdb has --set from PostgreSQL 16 on

    @cached_property
    def binaries(self) -> Path:
        """Its programs."""
        return max(DEBIANS.iterdir(), key=lambda path: int(path.name)) / "bin"


class DebianRedis(Valkey):
    """The server of Debian's package."""

    @cached_property
    def binary(self) -> Path:
        """Its program."""
        return Path(_which("redis-server"))


def _which(name: str) -> str:
    """Return the path of a program of the system, "" without it; Debian has some where only root looks."""
    return shutil.which(name) or shutil.which(name, path="/usr/sbin:/usr/local/sbin") or ""


def missing() -> list[str]:
    """Return Debian's packages that a scene needs and this machine lacks."""
    lacking = [name for name in ("redis-server", "pgbouncer") if not _which(name)]
    return lacking if DEBIANS.is_dir() else ["postgresql", *lacking]


@contextmanager
def started(server: Server) -> Iterator[Server]:
    """Start a server on a free port for the block."""
    server.start()
    try:
        server.wait_until_ready()
        yield server
    finally:
        server.stop()


def postgres(folder: Path, *, debian: bool, options: tuple[str, ...] = ()) -> StockPostgres:
    """Return one that is not started yet."""
    server = (DebianPostgres if debian else StockPostgres)(DataDirectory(folder / "rows"), durable=False)
    server.options = options
    return server


def redis(folder: Path, *, debian: bool) -> Valkey:
    """Return one that is not started yet."""
    return (DebianRedis if debian else Valkey)(DataDirectory(folder / "index"), durable=False)


@contextmanager
def pooler(folder: Path, server: Postgres) -> Iterator[tuple[int, int]]:
    """Run PgBouncer in transaction mode for the block; yield its port and its process."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    password = server.data.secret("postgres_password")
    config = folder / "pgbouncer.ini"
    config.write_text(
        f"[databases]\n* = host=127.0.0.1 port={server.port} user=postgres password={password} dbname={DATABASE}\n"
        f"[pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {port}\nunix_socket_dir =\nauth_type = any\n"
        "pool_mode = transaction\n"
    )
    config.chmod(0o644)
    program = _which("pgbouncer")
    as_another = ["-u", "nobody"] if getpass.getuser() == "root" else []  # PgBouncer refuses to run as root
    with (folder / "pgbouncer.log").open("wb") as log:
        process = subprocess.Popen([program, *as_another, str(config)], stdout=log, stderr=log)
    try:
        _wait_for(port)
        yield port, process.pid
    finally:
        process.terminate()
        process.wait(60)


def _wait_for(port: int) -> None:
    def answers() -> bool:
        with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
            return True
        return False

    until(answers, f"port {port} answers", 30)


def seconds(pid: int) -> float:
    """Return the processor time of a process and its children so far, also of children that have ended."""
    process = psutil.Process(pid)
    family = [process, *process.children(recursive=True)]
    return sum(sum(one.cpu_times()[:4]) for one in family)
