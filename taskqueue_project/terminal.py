"""The one way in which the project's commands write to the terminal."""

import sys
from typing import IO, cast

from django.core.management.base import OutputWrapper
from rich.console import Console

#: Enough for the demo's tables where there is no terminal whose width counts.
LOG_WIDTH = 140


def terminal(file: OutputWrapper) -> Console:
    """Return a console on a command's output, which Django wraps so that rich does not see the terminal behind it."""
    is_terminal = sys.stdout.isatty()
    return Console(
        file=cast("IO[str]", file),
        force_terminal=is_terminal,
        width=None if is_terminal else LOG_WIDTH,
        highlight=False,
    )
