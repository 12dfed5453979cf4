"""Show queues and workers live until q or Ctrl-C; without a terminal, print once."""

import os
import select
import shutil
import sys
import time
from argparse import ArgumentParser
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

from django.db import DatabaseError, connections

from queue_app.dashboard.labels import age
from queue_app.exceptions import in_one_line
from queue_app.logs import printable
from queue_app.management.verbs import OK, Call, Needs
from queue_app.management.verbs._values import format_table
from queue_app.management.verbs.stats import lines
from queue_app.services.read.stats import Running, queue_stats, running
from queue_app.sql.database import alias

EXAMPLE = "taskqueue top --interval 2"
NEEDS = Needs.DATABASE | Needs.READABLE
#: ANSI sequences: enter and leave the alternate screen, go home, clear the rest of the line or screen.
ENTER, LEAVE = "\x1b[?1049h\x1b[?25l", "\x1b[?25h\x1b[?1049l"
HOME, CLEAR_LINE, CLEAR_REST = "\x1b[H", "\x1b[K", "\x1b[J"
MINIMUM_INTERVAL: Final = 0.2


def add_arguments(parser: ArgumentParser) -> None:
    add = parser.add_argument
    add("--interval", type=float, default=2.0, metavar="SECONDS", help="time between two updates (default 2)")
    add("--once", action="store_true", help="print once and exit")


def run(call: Call) -> int:
    """Show the page until the user quits."""
    terminal = sys.stdout
    if call["once"] or not terminal.isatty() or not sys.stdin.isatty():
        call.write("\n".join(page(height=1000, width=1000)))
        return OK
    with _screen(terminal.write, terminal.flush):
        while True:
            size = shutil.get_terminal_size()
            page_lines = page(height=size.lines, width=size.columns)
            terminal.write(HOME + "\n".join(line + CLEAR_LINE for line in page_lines) + CLEAR_REST)
            terminal.flush()
            if _quits(max(MINIMUM_INTERVAL, call["interval"])):
                return OK


def page(*, height: int, width: int) -> list[str]:
    """Return the lines that fit on a screen: the numbers, then the running tasks, longest first."""
    try:
        found = [time.strftime("%H:%M:%S") + "  task queue", *lines(queue_stats())]
        tasks = running(max(0, height - len(found) - 3))
    except DatabaseError as error:
        connections[alias()].close()
        return [f"PostgreSQL does not answer: {in_one_line(error)}"[:width], "trying again; q quits"]
    if tasks:
        found += ["", *format_table([["executing", "queue", "worker", "attempt", "for"], *map(_row, tasks)])]
    # Without control characters, which a name could contain to steer the terminal.
    return [printable(line)[:width] for line in found][:height]


def _row(task: Running) -> list[str]:
    return [task.task_type, task.queue, task.worker, str(task.attempt), age(task.seconds)]


@contextmanager
def _screen(write: Callable[[str], Any], flush: Callable[[], None]) -> Iterator[None]:
    """Take the terminal: keys arrive at once and are not echoed. Restore it at the end."""
    import termios  # noqa: PLC0415 - missing on Windows
    import tty  # noqa: PLC0415

    before = termios.tcgetattr(sys.stdin)
    write(ENTER)
    try:
        tty.setcbreak(sys.stdin)
        yield
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)
        write(LEAVE)
        flush()


def _quits(seconds: float) -> bool:
    """Wait for ``seconds`` or until a key is pressed; return whether the key quits."""
    ready, _, _ = select.select([sys.stdin], [], [], seconds)
    return bool(ready) and os.read(sys.stdin.fileno(), 1) in {b"q", b"Q", b""}
