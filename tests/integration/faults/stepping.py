"""A clock that steps, for a process that knows nothing of it: its time of day comes through a preloaded library.

libfaketime does the same, but also changes how long Python sleeps, and fails at it (version 0.9.10).
"""

from __future__ import annotations

import shutil
import struct
import subprocess
from functools import cache
from pathlib import Path

SOURCE = Path(__file__).with_suffix(".c")


class Skipped(Exception):
    """A fault cannot be made here, because of what the message says."""


@cache
def _library(folder: Path) -> Path:
    compiler = shutil.which("cc")
    if compiler is None:
        raise Skipped("there is no C compiler (Debian: gcc libc6-dev)")
    library = folder / "stepping.so"
    subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-o", library, SOURCE, "-ldl"], check=True)
    library.chmod(0o755)
    return library


class Clock:
    """The clock of the processes that are started with ``env``; monotonic clocks stay as they are."""

    def __init__(self, file: Path) -> None:
        self._file = file
        file.parent.mkdir(exist_ok=True)
        file.write_bytes(struct.pack("=q", 0))
        file.chmod(0o644)  # PostgreSQL runs as another user
        self._library = _library(file.parent)

    def step_to(self, seconds: int) -> None:
        """Let the clock be this far ahead of the true time from now on."""
        with self._file.open("r+b") as file:
            file.write(struct.pack("=q", seconds))

    @property
    def env(self) -> dict[str, str]:
        """What the environment of a process with this clock has besides."""
        return {"LD_PRELOAD": str(self._library), "STEPPING_CLOCK": str(self._file)}
