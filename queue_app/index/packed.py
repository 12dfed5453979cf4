"""Queued tasks as they travel to the index, to be pushed or compared: packed, lane by lane."""

import struct
from collections.abc import Iterable, Iterator
from typing import Any

from queue_app.core.records import Entry, PackedLane

#: Maximum ids of one lane per call, and about the number of ids of all its lanes.
CHUNK = 1000


def pack(entries: Iterable[Entry]) -> list[Any]:
    """Return the arguments of ``lua/push.lua`` for these entries."""
    lanes: dict[str, tuple[list[bytes], list[float]]] = {}
    for lane, score, task_id in entries:
        found = lanes.get(lane)
        if found is None:
            found = lanes[lane] = [], []
        found[0].append(task_id.bytes)
        found[1].append(score)
    arguments: list[Any] = []
    for lane, (ids, scores) in lanes.items():
        places = scores if len(set(scores)) > 1 else scores[:1]
        arguments += (lane, b"".join(ids), struct.pack(f">{len(places)}d", *places))
    return arguments


def calls(lanes: Iterable[PackedLane]) -> Iterator[list[str | bytes]]:
    """Yield the arguments of ``lua/push.lua`` or ``lua/misplaced.lua``, for one call after another."""
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
