"""How lifecycle events travel to ``lua/publish.lua``."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from itertools import batched
from typing import Any

from queue_app import conf
from queue_app.core.events import COUNTED, Occasion, Run, counted
from queue_app.core.ids import as_texts

#: Tasks that one entry names at most. An entry for each would cost a busy worker a sixth of
#: its speed, most of it in the server; entries without bound would leave the stream without one.
IDS_PER_ENTRY = 16


def publish_arguments(runs: Iterable[Run]) -> list[Any]:
    """Return the arguments of ``lua/publish.lua`` for these events, and for what they count."""
    settings = conf.get()
    told: list[tuple[Occasion, list[str]]] = []
    counts: dict[str, int] = {}
    keeps_events = settings.events.max_length > 0
    for occasion, task_ids in runs:
        if occasion.name == COUNTED:
            _add(counts, occasion)
            continue
        if keeps_events:
            told.append((occasion, [" ".join(some) for some in batched(as_texts(task_ids), IDS_PER_ENTRY)] or [""]))
        name = _count_of(occasion)
        counts[name] = counts.get(name, 0) + max(1, len(task_ids))
    return [
        settings.events.max_length,
        json.dumps(told),
        *((part for item in counts.items() for part in item) if settings.metrics.enabled else ()),
    ]


def _add(counts: dict[str, int], occasion: Occasion) -> None:
    for name, count in batched(occasion.details, 2):
        counts[name] = counts.get(name, 0) + int(count)


def _count_of(occasion: Occasion) -> str:
    """Return the name under which such events are counted (``core.tally``)."""
    details = occasion.details
    reason = details[1] if details[:1] == ("reason",) else ""
    return f"event:{occasion.name}:{occasion.queue}:{occasion.priority}:{occasion.status}:{reason}"


def split(runs: Iterable[Run], size: int) -> Iterator[list[Run]]:
    """Cut the events into parts of at most ``size``, neighbours of one kind joined; the order stays.

    What is only counted is no neighbour: it is added up, and goes with the last part.
    """
    part: list[Run] = []
    counts: dict[str, int] = {}
    room = size
    for occasion, task_ids in runs:
        if occasion.name == COUNTED:
            _add(counts, occasion)
            continue
        if not task_ids:
            part.append(Run(occasion, []))
        at = 0
        while at < len(task_ids):
            taken = task_ids[at : at + room]
            if part and part[-1].occasion == occasion:
                part[-1].task_ids.extend(taken)
            else:
                part.append(Run(occasion, list(taken)))
            at += len(taken)
            room -= len(taken)
            if not room:
                yield part
                part, room = [], size
    if counts:
        part.append(counted(counts))
    if part:
        yield part
