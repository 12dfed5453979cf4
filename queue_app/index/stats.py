"""Numbers of waiting and running tasks in all queues or in one, counted by ``lua/stats.lua``."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import batched
from typing import Any

from queue_app.core.limits import queued_at_of
from queue_app.core.priorities import Band
from queue_app.index.client import text

_NUMBER = re.compile(rb"-?\d+")


@dataclass(frozen=True, slots=True)
class QueueDepth:
    """Leases of a queue, its queued tasks by effective band, and when the oldest of each was queued."""

    queue: str
    active: int
    counts: dict[Band, int]
    oldest: dict[Band, datetime]

    @property
    def total(self) -> int:
        return sum(self.counts.values())


@dataclass(frozen=True, slots=True)
class IndexStats:
    """The whole index at about one instant.

    ``state`` is that of its generation. ``counts`` are the counters of ``core.counters`` since Redis was emptied.
    """

    generation: int
    state: str
    counts: dict[str, int]
    queues: list[QueueDepth]


def stats_of(pages: Sequence[Sequence[Any]], counters: Mapping[bytes, bytes]) -> IndexStats:
    """Return the stats of all queues from the replies of the script, and the counters that are numbers."""
    number, state = pages[0][0]
    return IndexStats(
        generation=int(number or 0),
        state=text(state),
        counts={text(name): int(count) for name, count in counters.items() if _NUMBER.fullmatch(count)},
        queues=depths_of(pages),
    )


def depths_of(pages: Iterable[Sequence[Any]]) -> list[QueueDepth]:
    """Return the depths of the queues; a queue may come in parts."""
    found: dict[str, QueueDepth] = {}
    for page in pages:
        for part in batched(page[1:], 2 + 2 * len(Band)):
            name, active = part[0].decode(), int(part[1])
            depth = found.setdefault(name, QueueDepth(name, active, dict.fromkeys(Band, 0), {}))
            for band, (count, first) in zip(Band, batched(part[2:], 2), strict=True):
                depth.counts[band] += int(count)
                if first:
                    at = queued_at_of(float(first))
                    depth.oldest[band] = min(at, depth.oldest.get(band, at))
    return list(found.values())
