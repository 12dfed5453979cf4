"""Restart the worker when the code has changed, for development."""

import logging
import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path

from django.utils.autoreload import iter_all_python_module_files

logger = logging.getLogger("taskqueue")

CHECK_SECONDS = 1.0


class Reloader:
    """Calls ``on_change`` once when the file of a module has changed and compiles."""

    def __init__(self, on_change: Callable[[], None]) -> None:
        self._on_change = on_change
        self._seen: dict[Path, float] = {}
        self.changed = False

    def start(self) -> None:
        """Start to watch the files."""
        self.check()
        threading.Thread(target=self._run, name="reload", daemon=True).start()

    def check(self) -> bool:
        """Return whether files have changed and all of these compile."""
        changed: list[Path] = []
        for path in iter_all_python_module_files():
            try:
                at = path.stat().st_mtime
            except OSError:
                continue
            if self._seen.setdefault(path, at) != at:
                changed.append(path)
        for path in changed:
            try:
                compile(path.read_bytes(), path, "exec")
            except (SyntaxError, OSError) as error:
                logger.warning("%s has changed, but does not compile: %s", path, error)
                return False
        if changed:
            logger.info("%s has changed; the worker restarts", ", ".join(map(str, changed)))
        return bool(changed)

    def _run(self) -> None:
        tick = threading.Event()
        while not tick.wait(CHECK_SECONDS):
            if self.check():
                self.changed = True
                self._on_change()
                return


def restart() -> None:
    """Replace this process by one with the same command line."""
    sys.stdout.flush()
    sys.stderr.flush()
    os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])  # noqa: S606 - the command line of this process
