"""`manage.py quickstart`: servers, database, web, scheduler, workers and the demo, started by one command.

session      starts and ends everything else; this is the command's own process
prepare      migrations, staff user, fixtures; a process that ends
application  starts and stops the process manager
processes    the process manager with web, scheduler, workers and Celery
running      a file with the addresses of the servers, for other terminals
"""

from enum import IntEnum

#: Name of the staff user, and the variable with its password.
ADMIN = "admin"
PASSWORD_VARIABLE = "QUICKSTART_ADMIN_PASSWORD"  # noqa: S105 - the name of a variable


class ExitCode(IntEnum):
    """The exit codes of quickstart."""

    OK = 0
    UNEXPECTED_OUTCOME = 1
    USAGE = 2
    ALREADY_RUNNING = 3
    SERVER_UNREACHABLE = 4
    PROCESS_ENDED = 5


class QuickstartError(Exception):
    """An error that ends quickstart with an exit code."""

    def __init__(self, code: ExitCode, message: str) -> None:
        super().__init__(message)
        self.code = code
