"""The session: start everything in order, run the demo, serve, and stop everything."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.markup import escape

from taskqueue_project.embedded import EmbeddedError, EmbeddedServers
from taskqueue_project.embedded.data_directory import HOST, DataDirectory, port_is_free

from . import ADMIN, PASSWORD_VARIABLE, ExitCode, QuickstartError
from .application import first_to_end, running_processes, wait_for_web
from .running import announced, running_file

SERVERS = {"postgres": "DATABASE_URL", "valkey": "REDIS_URL"}
WATCH_SECONDS = 0.5


@dataclass(frozen=True, kw_only=True)
class Options:
    """The options of the command."""

    project: Path
    data: Path
    input: Path
    demo: bool = True
    exit: bool = False
    port: int | None = None
    admin_password: str | None = None
    verbose: bool = False


def run(options: Options, console: Console) -> ExitCode:
    """Start everything, run the demo, serve until a signal; raise `QuickstartError` if a process fails."""
    with _signals_as_interrupts():
        try:
            return _run(options, console)
        except KeyboardInterrupt:
            return ExitCode.OK
        except EmbeddedError as error:
            raise QuickstartError(ExitCode.SERVER_UNREACHABLE, str(error)) from None


def _run(options: Options, console: Console) -> ExitCode:
    data = DataDirectory(options.data)
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(data.locked("quickstart.lock"))
        except EmbeddedError as error:
            raise QuickstartError(ExitCode.ALREADY_RUNNING, f"A quickstart is running already: {error}") from None
        port = _choose_port(options, data)
        stack.callback(console.print, "Stopped.")
        running_file(data.root).unlink(missing_ok=True)
        environment = stack.enter_context(_servers(data, console))
        processes = stack.enter_context(
            running_processes(options.project, data, environment, port, verbose=options.verbose)
        )
        _prepare(options, environment, console)
        stack.enter_context(announced(data.root, environment))
        wait_for_web(processes, port, data)
        _greet(console, port, data)
        outcome = _demo(options, environment, processes) if options.demo else ExitCode.OK
        if options.exit and processes.poll() is None:
            return outcome
        if processes.poll() is None:
            console.print(
                "Serving. Ctrl-C stops everything. In another terminal: ./dev manage runworker --capabilities gpu"
            )
        processes.wait()
        raise QuickstartError(ExitCode.PROCESS_ENDED, f"{first_to_end(data)} ended by itself; see {data.logs}.")


def _choose_port(options: Options, data: DataDirectory) -> int:
    if options.port is None:
        return data.port("web_port")
    if not port_is_free(options.port):
        raise QuickstartError(ExitCode.USAGE, f"Port {options.port} is in use; choose another, or omit --port.")
    return options.port


@contextlib.contextmanager
def _signals_as_interrupts() -> Iterator[None]:
    """Turn SIGTERM and SIGHUP into a KeyboardInterrupt, like Ctrl-C; ignore further signals."""

    def interrupt(*_: object) -> None:
        for number in numbers:
            signal.signal(number, signal.SIG_IGN)
        raise KeyboardInterrupt

    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {number: signal.signal(number, interrupt) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def _servers(data: DataDirectory, console: Console) -> Iterator[dict[str, str]]:
    """Start the servers that the environment does not name; yield the environment for all processes."""
    missing = [kind for kind, variable in SERVERS.items() if not os.environ.get(variable)]
    servers = EmbeddedServers(data.root, only=missing)
    environment = dict(os.environ)
    if missing:
        begin = time.monotonic()
        servers.start()
        names = " and ".join({"postgres": "PostgreSQL 18", "valkey": "Valkey 9"}[kind] for kind in missing)
        console.print(f"{names} in {escape(str(data.root))} ({time.monotonic() - begin:.1f} s)")
    environment |= {
        "DATABASE_URL": servers.database_url or environment["DATABASE_URL"],
        "REDIS_URL": servers.redis_url or environment["REDIS_URL"],
        "SECRET_KEY": environment.get("SECRET_KEY") or data.secret("secret_key"),
        "PYTHONUNBUFFERED": "1",
    }
    environment.setdefault("DJANGO_SETTINGS_MODULE", "taskqueue_project.settings.dev")
    try:
        yield environment
    finally:
        servers.stop()


def _prepare(options: Options, environment: dict[str, str], console: Console) -> None:
    """Prepare the database in a separate process."""
    extra = {PASSWORD_VARIABLE: options.admin_password} if options.admin_password else {}
    result = subprocess.run(
        [sys.executable, "-m", "taskqueue_project.quickstart.prepare"],
        cwd=options.project,
        env=environment | extra,
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    found = json.loads(result.stdout) if result.stdout.strip() else {}
    if result.returncode or not found:
        raise QuickstartError(ExitCode.SERVER_UNREACHABLE, found.get("error", "The database could not be prepared."))
    done = f"{found['migrations']} migrations applied" if found["migrations"] else "up to date"
    console.print(f"Database: {done}; {found['fixtures']} fixtures loaded")
    if found["password"]:
        console.print(
            f"Staff user [bold]{ADMIN}[/], password [bold]{escape(found['password'])}[/] "
            "(shown only once; --admin-password sets another)"
        )


def _greet(console: Console, port: int, data: DataDirectory) -> None:
    console.print("Running: web, scheduler, 2 workers, Celery worker with beat")
    console.print(f"  admin   http://{HOST}:{port}/admin/  (user {ADMIN})")
    console.print(f"  API     http://{HOST}:{port}/api/v1/tasks, .../api/v1/queue/stats  (the same user)")
    console.print(f"  logs    {escape(str(data.logs))}")


def _demo(options: Options, environment: dict[str, str], processes: subprocess.Popen[bytes]) -> ExitCode:
    """Run the demo as a child process that owns the terminal, for its progress bar."""
    command = [sys.executable, "manage.py", "demo", "--input", str(options.input)]
    demo = subprocess.Popen(command, cwd=options.project, env=environment, stdin=subprocess.DEVNULL)
    try:
        # When a process has ended, the manager has stopped all, and no worker runs the demo's tasks.
        while demo.poll() is None and processes.poll() is None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                demo.wait(WATCH_SECONDS)
        known: dict[int | None, ExitCode] = {0: ExitCode.OK, 2: ExitCode.USAGE}
        return known.get(demo.poll(), ExitCode.UNEXPECTED_OUTCOME)
    finally:
        demo.terminate()
        demo.wait()
