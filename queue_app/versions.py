"""Versions of a task's signature, for deploys in which old calls wait and old workers still run.

The version of a call is stored with its metadata, unless it is 1.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, Final

from queue_app.exceptions import Snooze
from queue_app.registry import AnyTask

type Arguments = tuple[list[Any], dict[str, Any]]
#: Returns the arguments of the present version for those of an older one: (version, args, kwargs), as stored JSON.
type Upgrade = Callable[[int, list[Any], dict[str, Any]], Arguments]

#: Key in the metadata.
KEY: Final = "task_version"
MAX_VERSION: Final = 1_000_000
#: Seconds after which a worker with older code offers a newer call again; another worker may take it. With less, many
#: newer calls would keep old workers busy in vain. A new ``task_type`` spares the wait: old workers do not ask for it.
NEXT_OFFER: Final = 10.0


def of(task: AnyTask | None) -> int:
    """Return the version of a task in this process; 1 for a type that is not registered."""
    version: int = getattr(task, "version", 1)
    return version


def arguments_of(task: AnyTask, metadata: str | None, args: list[Any], kwargs: dict[str, Any]) -> Arguments:
    """Return the arguments of a stored call for the function as it is now.

    Raises ``Snooze`` for a call of a newer version: a worker with newer code runs it.
    """
    known: int = getattr(task, "version", 1)
    stored: int = 1 if metadata is None else json.loads(metadata).get(KEY, 1)
    if stored > known:
        raise Snooze(NEXT_OFFER, f"The call has version {stored} of its task, and this worker's code version {known}.")
    upgrade: Upgrade | None = getattr(task, "upgrade", None)
    if stored == known or upgrade is None:
        return args, kwargs
    upgraded: Any = upgrade(stored, args, kwargs)  # of the project, which may return anything
    if not (isinstance(upgraded, tuple) and [*map(type, upgraded)] == [list, dict]):
        raise TypeError(f"upgrade must return a list and a dict, (args, kwargs), not {upgraded!r:.100}.")
    found: Arguments = upgraded
    return found
