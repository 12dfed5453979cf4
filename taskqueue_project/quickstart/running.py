"""The file with the addresses of a running quickstart, readable by its user only. Settings use it: no Django here."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from taskqueue_project.embedded.data_directory import write_private

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
    write_private(path, json.dumps({name: environment[name] for name in NAMES}, indent=1))
    try:
        yield
    finally:
        path.unlink(missing_ok=True)
