"""Ask the index which of the queued rows are not where they belong."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from queue_app.core.records import PackedLane

#: So many ids of a lane go into one call at most, and about so many of all lanes.
CHUNK = 1000


def misplaced(call: Callable[..., Any], lanes: Iterable[PackedLane]) -> list[uuid.UUID]:
    """Return the tasks that are missing or stand at a wrong place; ``call`` runs a script by its name."""
    found: list[bytes] = []
    for arguments in _calls(lanes):
        found += call("compare", *arguments)
    return [uuid.UUID(bytes=task_id) for task_id in found]


def _calls(lanes: Iterable[PackedLane]) -> Iterator[list[str | bytes]]:
    arguments: list[str | bytes] = []
    count = 0
    for lane in lanes:
        for start in range(0, lane.size, CHUNK):
            part = lane.part(start, start + CHUNK)
            arguments += part
            count += part.size
            if count >= CHUNK:
                yield arguments
                arguments, count = [], 0
    if arguments:
        yield arguments
