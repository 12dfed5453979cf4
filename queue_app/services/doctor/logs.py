"""Check that the project's LOGGING shows the failures of tasks."""

import logging
from collections.abc import Iterator
from typing import Final

from queue_app.core.finding import Finding, fail, ok

#: The logger of the queue. It logs the failure that ends a task at the level ERROR.
LOGGER: Final = "taskqueue"


def check_logging() -> Iterator[Finding]:
    """Report settings in LOGGING that hide failures of tasks."""
    logger = logging.getLogger(LOGGER)
    record = logger.makeRecord(LOGGER, logging.ERROR, "", 0, "a task failed", (), None)
    handlers = list(_handlers(logger))
    if logger.disabled:
        yield fail(
            "logging",
            f"LOGGING switches the logger {LOGGER!r} off, so failures of tasks are not logged",
            'Set "disable_existing_loggers": False in LOGGING.',
        )
    elif not logger.isEnabledFor(logging.ERROR) or not logger.filter(record):
        yield fail(
            "logging",
            f"LOGGING lets the logger {LOGGER!r} log nothing of the level ERROR, so failures of tasks are not logged",
            f"Set the level of {LOGGER!r} to INFO in LOGGING, and remove filters that refuse its records.",
        )
    elif not handlers:
        yield ok("logging", "LOGGING has no handler for the queue; runworker and runscheduler print on the terminal")
    elif not any(handler.level <= logging.ERROR and handler.filter(record) for handler in handlers):
        yield fail(
            "logging",
            f"no handler in LOGGING takes errors of the logger {LOGGER!r}, so failures of tasks are not logged",
            f"Add a handler of the level INFO for {LOGGER!r} or the root logger, such as logging.StreamHandler.",
        )
    else:
        yield ok("logging", "LOGGING has a handler for failures of tasks")


def _handlers(logger: logging.Logger | None) -> Iterator[logging.Handler]:
    """Yield the handlers that get the logger's records, without those that drop every record."""
    while logger is not None:
        yield from (handler for handler in logger.handlers if not isinstance(handler, logging.NullHandler))
        logger = logger.parent if logger.propagate else None
