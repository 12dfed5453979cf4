"""What waits and runs in all queues, as ``lua/stats.lua`` tells it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import batched
from typing import Any

from queue_app.core.lanes import queued_at_of
from queue_app.core.priorities import Band


@dataclass(frozen=True, slots=True)
class IndexStats:
    """The whole index at about one instant.

    ``state`` is ready, rebuilding or missing; ``leader_lapses`` says in how many seconds the
    leadership of the schedulers ends unless it is renewed, ``None`` when nobody leads;
    ``counts`` are those of ``core.tally``, since Redis was emptied.
    """

    generation: int
    state: str
    leader_lapses: float | None
    counts: dict[str, int]
    queues: list[QueueDepth]


def take_census(call: Callable[..., Any]) -> IndexStats:
    """Return the stats; ``call`` runs a script by its name. One call up to about 5 000 lanes."""
    reply = call("stats", "", "0")
    number, state, lapses, *counts = reply[2]
    pages = [reply[3:]]
    while reply[0]:
        reply = call("stats", reply[0], reply[1])
        pages.append(reply[3:])
    return IndexStats(
        generation=int(number),
        state=state.decode(),
        leader_lapses=int(lapses) / 1000 if int(lapses) >= 0 else None,
        counts={name.decode(): int(count) for name, count in batched(counts, 2)},
        queues=_queues(pages),
    )


def _queues(pages: Sequence[Sequence[Any]]) -> list[QueueDepth]:
    found: dict[str, QueueDepth] = {}
    for page in pages:
        for part in batched(page, 2 + 2 * len(Band)):
            name, active = part[0].decode(), int(part[1])
            depth = found.setdefault(name, QueueDepth(name, active, dict.fromkeys(Band, 0), {}))
            for band, (count, first) in zip(Band, batched(part[2:], 2), strict=True):
                depth.counts[band] += int(count)
                if first:
                    at = queued_at_of(float(first))
                    depth.oldest[band] = min(at, depth.oldest.get(band, at))
    return list(found.values())


@dataclass(frozen=True, slots=True)
class QueueDepth:
    """Queued tasks by effective band, when the oldest of each was queued, and leases in use."""

    queue: str
    active: int
    counts: dict[Band, int]
    oldest: dict[Band, datetime]

    @property
    def total(self) -> int:
        """All queued tasks."""
        return sum(self.counts.values())
