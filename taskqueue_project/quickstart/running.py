"""The file with the addresses of a running quickstart, readable by its user only. Settings use it: no Django here."""

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

DATA = ".taskqueue"
FILE = "running.json"
#: Variables that another terminal needs.
NAMES = ("DATABASE_URL", "REDIS_URL", "SECRET_KEY")


def data_path(project: Path) -> Path:
    """Return the data directory of quickstart."""
    return project / DATA


def running_file(data: Path) -> Path:
    """Return the file that exists while a quickstart serves, with its database prepared."""
    return data / FILE


def read_addresses(project: Path) -> dict[str, str]:
    """Return the addresses of the running quickstart; an empty dict when none runs."""
    try:
        found = json.loads(running_file(data_path(project)).read_text())
    except (OSError, ValueError):
        return {}
    return {name: value for name, value in found.items() if name in NAMES}


@contextmanager
def announced(data: Path, environment: dict[str, str]) -> Iterator[None]:
    """Publish the addresses for the duration of the block."""
    path = running_file(data)
    fresh = path.with_suffix(".new")
    with os.fdopen(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
        json.dump({name: environment[name] for name in NAMES}, file, indent=1)
    fresh.replace(path)  # atomic, for processes that wait for the file
    try:
        yield
    finally:
        path.unlink(missing_ok=True)
