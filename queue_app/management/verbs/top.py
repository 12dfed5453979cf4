"""Watch queues and workers live; ends with q or Ctrl-C. Where there is no terminal it prints once."""

from __future__ import annotations

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

from queue_app.management.verbs import OK, Call, Needs
from queue_app.management.verbs._values import columns, spell
from queue_app.management.verbs.stats import lines
from queue_app.services.read.stats import Running, queue_stats, running
from queue_app.sql.database import alias

EXAMPLE = "taskqueue top --interval 2"
NEEDS = Needs.SETTINGS | Needs.DATABASE
#: Plain ANSI, which every terminal of today knows: another screen and back, home, clear what follows.
ENTER, LEAVE = "\x1b[?1049h\x1b[?25l", "\x1b[?25h\x1b[?1049l"
HOME, CLEAR_LINE, CLEAR_REST = "\x1b[H", "\x1b[K", "\x1b[J"
MINIMUM_INTERVAL: Final = 0.2


def add_arguments(parser: ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("--interval", type=float, default=2.0, metavar="SECONDS", help="between two looks (default 2)")
    parser.add_argument("--once", action="store_true", help="print once, without taking the screen")


def run(call: Call) -> int:
    """Show it until told to stop."""
    terminal = sys.stdout
    if call["once"] or not terminal.isatty() or not sys.stdin.isatty():
        call.say("\n".join(page(height=1000, width=1000)))
        return OK
    with _screen(terminal.write, terminal.flush):
        while True:
            size = shutil.get_terminal_size()
            shown = page(height=size.lines, width=size.columns)
            terminal.write(HOME + "\n".join(line + CLEAR_LINE for line in shown) + CLEAR_REST)
            terminal.flush()
            if _asked_to_stop(max(MINIMUM_INTERVAL, call["interval"])):
                return OK


def page(*, height: int, width: int) -> list[str]:
    """Return what fits on a screen: the numbers, then what runs, longest first."""
    try:
        told = [time.strftime("%H:%M:%S") + "  task queue", *lines(queue_stats())]
        tasks = running(max(0, height - len(told) - 3))
    except DatabaseError as error:
        connections[alias()].close()
        return [f"PostgreSQL does not answer: {' '.join(str(error).split())}"[:width], "trying again; q ends this"]
    if tasks:
        told += ["", *columns([["executing", "queue", "worker", "attempt", "for"], *map(_row, tasks)])]
    return [_plain(line)[:width] for line in told][:height]


def _row(task: Running) -> list[str]:
    return [task.task_type, task.queue, task.worker, str(task.attempt), spell(task.seconds)]


def _plain(line: str) -> str:
    """Return a line that cannot steer the terminal, whatever a name in it holds."""
    return "".join(character if character.isprintable() else "?" for character in line)


@contextmanager
def _screen(write: Callable[[str], Any], flush: Callable[[], None]) -> Iterator[None]:
    """Take the terminal: keys come at once and unseen; give it back whatever happens."""
    import termios  # noqa: PLC0415 - not on Windows, where there is no such terminal
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


def _asked_to_stop(seconds: float) -> bool:
    """Wait so long, or until a key; return whether it was q."""
    ready, _, _ = select.select([sys.stdin], [], [], seconds)
    return bool(ready) and os.read(sys.stdin.fileno(), 1) in {b"q", b"Q", b""}
