"""How lifecycle events travel to ``lua/publish.lua``."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterable, Iterator
from itertools import batched
from typing import Any

from queue_app import conf
from queue_app.core.events import Run

#: Tasks that one entry names at most. An entry for each would cost a busy worker a sixth of
#: its speed, most of it in the server; entries without bound would leave the stream without one.
IDS_PER_ENTRY = 16


def publish_arguments(runs: Iterable[Run]) -> list[Any]:
    """Return the arguments of ``lua/publish.lua`` for these events."""
    return [
        conf.get().events.max_length,
        json.dumps([(occasion, _as_texts(task_ids)) for occasion, task_ids in runs]),
    ]


def _as_texts(ids: Iterable[uuid.UUID]) -> list[str]:
    """Return the ids for each entry, as they are usually spelt; ``str`` of each would take twice as long."""
    digits = b"".join([task_id.bytes for task_id in ids]).hex()
    texts = [
        f"{digits[i : i + 8]}-{digits[i + 8 : i + 12]}-{digits[i + 12 : i + 16]}-{digits[i + 16 : i + 20]}"
        f"-{digits[i + 20 : i + 32]}"
        for i in range(0, len(digits), 32)
    ]
    return [" ".join(some) for some in batched(texts, IDS_PER_ENTRY)] or [""]


def split(runs: Iterable[Run], size: int) -> Iterator[list[Run]]:
    """Cut the events into parts of at most ``size``, neighbours of one kind joined; the order stays."""
    part: list[Run] = []
    room = size
    for occasion, task_ids in runs:
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
    if part:
        yield part
