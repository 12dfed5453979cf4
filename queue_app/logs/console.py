"""What workers and schedulers print when the project's LOGGING has no handler for it.

Handlers of the project win: the console is installed only if the root logger has none, and it skips records of loggers
that have handlers of their own.
"""

import logging
import os
import shutil
import textwrap
from collections.abc import Iterator, Mapping
from typing import Any, Final, TextIO

from django.core.management.color import color_style, no_style

from queue_app.logs import ATTRIBUTE, JSONFormatter

QUEUE: Final = "taskqueue"
logger = logging.getLogger(QUEUE)

#: ``--verbosity`` -> lowest level of the queue's own lines, and of all others.
LEVELS: Final = {
    0: (logging.WARNING, logging.WARNING),
    1: (logging.INFO, logging.WARNING),
    2: (logging.DEBUG, logging.INFO),
    3: (logging.DEBUG, logging.DEBUG),
}
INDENT: Final = "    "
#: Minimum width of a column in a narrow terminal.
MIN_WIDTH: Final = 20
#: Control characters could steer a terminal; names and errors may contain them.
_CONTROL: Final = {code: "?" for code in (*range(32), *range(127, 160)) if chr(code) != "\t"}


class Facts(dict[str, str]):
    """What a process tells about itself at its start: a block in a terminal, one line elsewhere."""

    def __str__(self) -> str:
        return "; ".join(f"{name}: {value}" for name, value in self.items())


def announce(title: str, facts: Mapping[str, str]) -> None:
    """Log the start of a process."""
    logger.info("%s: %s", title, Facts(facts), extra={ATTRIBUTE: {"event": "Starting"}})


class Console(logging.StreamHandler[TextIO]):
    """Prints the records for which the project has no handler."""

    prefix = ""  # tells the processes of one supervisor apart

    def filter(self, record: logging.LogRecord) -> bool | logging.LogRecord:
        """Refuse records of loggers that have their own handlers."""
        found: logging.Logger | None = logging.getLogger(record.name)
        while found is not None and found is not logging.root:
            if found.handlers:
                return False
            found = found.parent
        return super().filter(record)

    def format(self, record: logging.LogRecord) -> str:
        """Return the text of the record, with the prefix before each line."""
        text = super().format(record)
        if isinstance(self.formatter, JSONFormatter):
            return text
        over = "\r" if self.stream.isatty() and _facts(record).get("event") == "Stopping" else ""  # hides ^C
        return over + "\n".join(self.prefix + line for line in text.split("\n"))


class LineFormatter(logging.Formatter):
    """Lines for people; lines that continue a record are indented, so that no text can fake a record."""

    def __init__(self, colors: Any, *, is_terminal: bool) -> None:
        super().__init__()
        self._colors = colors
        self._is_terminal = is_terminal

    def format(self, record: logging.LogRecord) -> str:
        facts = record.args[-1] if isinstance(record.args, tuple) and record.args else None
        if self._is_terminal and isinstance(facts, Facts) and isinstance(record.args, tuple):
            return "\n".join([f"{self._start(record)}{_safe(str(record.args[0]))}", *self._block(facts)])
        head, *more = map(_safe, [*_message(record).splitlines(), *self._traceback(record).splitlines()] or [""])
        return "\n".join([f"{self._start(record)}{head}", *(INDENT + line for line in more)])

    def _start(self, record: logging.LogRecord) -> str:
        if not self._is_terminal:
            return f"{self.formatTime(record)} {record.levelname} {record.name}: "
        level = ""
        if record.levelno >= logging.WARNING:
            color = self._colors.ERROR if record.levelno >= logging.ERROR else self._colors.WARNING
            level = f"{color(record.levelname)} "
        return f"{self.formatTime(record, '%H:%M:%S')} {level}{'' if _is_own(record) else f'{record.name}: '}"

    def _block(self, facts: Facts) -> Iterator[str]:
        width = max(map(len, facts))
        room = max(MIN_WIDTH, shutil.get_terminal_size().columns - len(INDENT) - width - 2)
        for name, value in facts.items():
            for position, line in enumerate(textwrap.wrap(_safe(value), room, break_on_hyphens=False)):
                label = f"{name:<{width}}" if position == 0 else " " * width
                yield f"{INDENT}{self._colors.MIGRATE_LABEL(label)}  {line}"

    def _traceback(self, record: logging.LogRecord) -> str:
        if text := _facts(record).get("traceback"):
            return str(text)
        if record.exc_info and record.exc_info[0] is not None:
            return self.formatException(record.exc_info)
        return self.formatStack(record.stack_info) if record.stack_info else ""


def _facts(record: logging.LogRecord) -> Mapping[str, Any]:
    facts = getattr(record, ATTRIBUTE, None)
    return facts if isinstance(facts, Mapping) else {}


def _message(record: logging.LogRecord) -> str:
    """Return the text of a record, and the task that logged it."""
    task_type = getattr(record, f"{ATTRIBUTE}_task_type", "")
    if not task_type or _is_own(record):
        return record.getMessage()
    return f"{record.getMessage()} ({task_type} {getattr(record, f'{ATTRIBUTE}_task_id', '')})"


def _safe(line: str) -> str:
    return line.translate(_CONTROL)


def _is_own(record: logging.LogRecord) -> bool:
    return record.name.partition(".")[0] == QUEUE


def install(stream: TextIO, verbosity: int, *, json: bool = False, color: bool | None = None) -> None:
    """Print on ``stream`` what the project does not log itself; ``color`` is ``None`` to decide by the stream."""
    root = logging.getLogger()
    if root.handlers:
        if stream.isatty() and verbosity and not logger.isEnabledFor(logging.INFO):
            stream.write("LOGGING of this project hides lines of the logger 'taskqueue' below WARNING.\n")
        return
    own, others = LEVELS[verbosity]
    if logger.level == logging.NOTSET:
        logger.setLevel(own)
    if root.level == logging.WARNING:  # Python's default
        root.setLevel(others)
    console = Console(stream)
    is_terminal = stream.isatty()
    if color is None:
        color = is_terminal and not os.environ.get("NO_COLOR")
    style = color_style(force_color=True) if color else no_style()
    console.setFormatter(JSONFormatter() if json else LineFormatter(style, is_terminal=is_terminal))
    root.addHandler(console)


def number(process: int) -> None:
    """Let this process begin its lines with the number that its supervisor gave it."""
    for handler in logging.getLogger().handlers:
        if isinstance(handler, Console):
            handler.prefix = f"{process} | "
