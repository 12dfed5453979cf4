"""`manage.py quickstart`: run the whole system on this machine, with a demo."""

import os
import sys
from getpass import getpass
from pathlib import Path
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError, CommandParser

from taskqueue_project.quickstart import PASSWORD_VARIABLE, ExitCode, QuickstartError, session
from taskqueue_project.quickstart.running import data_path
from taskqueue_project.terminal import terminal


class Command(BaseCommand):
    """Start servers, web, scheduler, workers and Celery, run the demo, and serve."""

    help = (
        "Start everything on this machine and run a demo. PostgreSQL and Valkey are embedded, with their data in "
        ".taskqueue/, unless DATABASE_URL and REDIS_URL are set. Exit codes: 0 stopped by Ctrl-C, or with --exit the "
        "demo passed; 1 with --exit the demo failed; 2 invalid arguments; 3 already running; 4 a server cannot be "
        "started or reached; 5 a process ended by itself."
    )
    # Checks need the database, which this command starts.
    requires_system_checks: list[str] = []  # noqa: RUF012 - as Django declares it

    def add_arguments(self, parser: CommandParser) -> None:
        add = parser.add_argument
        add("--exit", action="store_true", help="exit after the demo's summary")
        add("--no-demo", action="store_true", help="start everything without the demo")
        add("--input", metavar="DIR", help="folder for the demo to index (default: this repository)")
        add("--data", metavar="DIR", help="folder of the servers' data and the logs (default: .taskqueue)")
        add("--port", type=int, help="port of the web process (default: a free one, kept for later starts)")
        add(
            "--admin-password",
            action="store_true",
            help=f"ask for a password for the staff user admin, unless {PASSWORD_VARIABLE} is set",
        )
        add("--verbose", action="store_true", help="also show the logs of all processes here")

    def handle(self, *_: Any, **options: Any) -> None:
        console = terminal(self.stdout)
        chosen = session.Options(
            project=settings.BASE_DIR,
            data=_from_caller(options["data"]) if options["data"] else data_path(settings.BASE_DIR),
            input=_input_folder(options["input"]),
            demo=not options["no_demo"],
            exit=options["exit"],
            port=options["port"],
            admin_password=_password(ask=options["admin_password"]),
            verbose=options["verbose"],
        )
        try:
            code = session.run(chosen, console)
        except QuickstartError as error:
            raise CommandError(str(error), returncode=error.code) from None
        sys.exit(code)


def _password(*, ask: bool) -> str | None:
    """Return the wanted password of the staff user. It is no argument, because all users see the list of processes."""
    given = os.environ.pop(PASSWORD_VARIABLE, None)  # not for the processes that this one starts
    if given or not ask:
        return given
    if not sys.stdin.isatty():
        message = f"--admin-password asks on a terminal, and there is none; set {PASSWORD_VARIABLE} instead."
        raise CommandError(message, returncode=ExitCode.USAGE)
    return getpass("Password for the staff user admin: ") or None


def _from_caller(path: str) -> Path:
    """Return an absolute path; ./dev changes to the project and sets DEV_CALLED_FROM to the caller's folder."""
    return Path(os.environ.get("DEV_CALLED_FROM", "."), Path(path).expanduser()).resolve()


def _input_folder(given: str | None) -> Path:
    """Return the folder to index."""
    folder = _from_caller(given) if given else Path(settings.BASE_DIR)
    if not folder.is_dir():
        raise CommandError(f"--input: {folder} is not a folder.", returncode=ExitCode.USAGE)
    return folder
