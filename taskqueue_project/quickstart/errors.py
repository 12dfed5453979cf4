"""Why quickstart ends, as exit codes."""

from enum import IntEnum


class ExitCode(IntEnum):
    """What the exit code of quickstart means."""

    OK = 0
    UNEXPECTED_OUTCOME = 1
    USAGE = 2
    ALREADY_RUNNING = 3
    SERVER_UNREACHABLE = 4
    PROCESS_ENDED = 5


class QuickstartError(Exception):
    """Quickstart cannot go on."""

    def __init__(self, code: ExitCode, message: str) -> None:
        super().__init__(message)
        self.code = code
