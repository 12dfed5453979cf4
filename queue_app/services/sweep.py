"""Take out of the index what no queued row stands for.

Such entries stay behind when a task ended, or was deleted, while the index could not be
told. A claim that meets one takes it out; but nobody claims from lanes that no worker runs.

The rolling comparison goes by the rows, so it meets none of them. But it counts the rows of
each lane, and where the index has more than that in two passes running, the lane is swept:
its entries are read in pages, the rows are asked for them, and what is not queued goes. In
busy lanes the count is only about right; there a sweep finds nothing, or what claims would
have found.

A row that becomes queued while it is swept must not lose its entry. So the entry is removed
first, and the rows are asked once more after that: what is queued then is pushed again. A
row that becomes queued later than this second question is pushed by its own transition
after its commit, and so after the removal. Whichever comes first, a push is the last word.

Crash points: between removal and second question, an entry of a row that became queued in
just that moment is missing; the rolling comparison pushes it.
"""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from queue_app.core.records import PackedLane
from queue_app.core.states import Status
from queue_app.index import Index
from queue_app.rows import audit
from queue_app.rows.claim import statuses

#: A step looks at about so many entries.
STEP = 5000


@dataclass(slots=True)
class Sweep:
    """What is known of the lanes that hold more than their rows, and how far they have been swept."""

    counted: Counter[str] = field(default_factory=Counter)  # rows that the pass under way has met, by lane
    suspects: set[str] = field(default_factory=set)  # lanes that held more at the end of the pass before
    cursors: dict[str, int] = field(default_factory=dict)  # lanes to sweep, and where to go on

    def count(self, lanes: Iterable[PackedLane]) -> None:
        """Note rows that the comparison has met."""
        for lane in lanes:
            self.counted[lane.lane] += lane.size

    def end_pass(self, index: Index) -> None:
        """Compare what was counted with what the index holds, and mark for a sweep what has had more twice."""
        fuller = {lane for lane, size in index.lane_sizes() if size > self.counted[lane]}
        self.counted.clear()
        for lane in fuller & self.suspects:
            self.cursors.setdefault(lane, 0)
        self.suspects = fuller

    def step(self, index: Index) -> int:
        """Sweep about ``STEP`` entries; return how many were removed and no row is queued for."""
        seen = removed = 0
        while self.cursors and seen < STEP:
            lane, cursor = next(iter(self.cursors.items()))
            cursor, ids = index.entries(lane, cursor)
            removed += _sweep_page(index, lane, ids)
            seen += len(ids)
            if cursor:
                self.cursors[lane] = cursor
            else:
                del self.cursors[lane]
        return removed


def _sweep_page(index: Index, lane: str, ids: list[uuid.UUID]) -> int:
    found = statuses(ids)
    doomed = [task_id for task_id in ids if found.get(task_id) is not Status.QUEUED]
    if not doomed:
        return 0
    removed = index.remove_entries((lane, task_id) for task_id in doomed)
    return removed - index.push(audit.refs(doomed))
