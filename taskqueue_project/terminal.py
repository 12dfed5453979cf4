"""Terminal output of the project's commands."""

import sys
from typing import IO, cast

from django.core.management.base import OutputWrapper
from rich.console import Console

#: Width of the output without a terminal; enough for the demo's tables.
LOG_WIDTH = 140


def terminal(file: OutputWrapper) -> Console:
    """Return a console for a command's output; Django's wrapper hides the terminal from rich."""
    file.ending = ""  # else it ends each part of a progress bar with a newline, so that the terminal scrolls
    is_terminal = sys.stdout.isatty()
    return Console(
        file=cast("IO[str]", file),
        force_terminal=is_terminal,
        width=None if is_terminal else LOG_WIDTH,
        highlight=False,
    )
