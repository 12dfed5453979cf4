"""Load the queued rows into a new index, part by part: a part holds the tasks of one queue and band.

The longest waiting tasks of each part are loaded first. Then claims are allowed, and the rest is loaded, the most
urgent band first. The index always holds the front of each part and nothing behind it: a push leaves later tasks to the
load. So no worker starts a task before another one of its queue and band that has waited longer. A queue by arrival is
one part in this: all its bands are loaded up to the same time, and a task of a new band is left to the load as well.

Each step moves the border of a part before it reads the rows up to there. A task that commits meanwhile is either among
the rows, or its own push comes after the move and puts it in its place.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from queue_app.core.lanes import score
from queue_app.core.priorities import Band
from queue_app.core.promotion import ARRIVAL_BAND
from queue_app.core.records import PackedLane
from queue_app.index import Index
from queue_app.models import Queue
from queue_app.sql import load as rows
from queue_app.sql.database import alias
from queue_app.sql.load import BEGINNING, END, Part, ReadPosition

#: Rows that are read at a time, of all parts together. With thousands of lanes, larger pages bring more tasks of a lane
#: together.
PAGE = 40_000
#: Minimum number of rows of one part.
LEAST = 20


def leave_to_load(index: Index, number: int) -> list[Part]:
    """Leave all that waits to the load of this generation; return the parts, each of which must be loaded."""
    parts = _parts(Queue.by_arrival(alias()))
    index.load_until(number, dict.fromkeys(parts, -1.0))
    return parts


def _parts(by_arrival: frozenset[str]) -> list[Part]:
    """Return the queues and bands in which tasks may wait, and all bands of the queues by arrival."""
    found = rows.parts()
    return [part for part in found if part[0] not in by_arrival] + [
        (queue, band) for queue in sorted({queue for queue, _ in found} & by_arrival) for band in Band
    ]


@dataclass(slots=True)
class Loader:
    """Loads the queued rows of one generation; ``end_step`` is called after each page.

    The parts that were ``left`` to it count also if no task waits there any more, because pushes leave new tasks out.
    """

    index: Index
    number: int
    left: list[Part]
    end_step: Callable[[], object]
    by_arrival: frozenset[str] = field(default_factory=lambda: Queue.by_arrival(alias()))
    after: dict[Part, ReadPosition] = field(default_factory=dict)  # how far each part is loaded that has more
    tasks: int = 0

    def begin(self) -> bool:
        """Load the first tasks of each part; return whether the index is still this generation."""
        self.after = dict.fromkeys([*self.left, *_parts(self.by_arrival)], BEGINNING)
        return self._step(list(self.after))

    def finish(self) -> bool:
        """Load the rest; return whether the index is still this generation."""
        while self.after:
            band = min(map(self._band, self.after))
            if not self._step([part for part in self.after if self._band(part) == band]):
                return False
        return True

    def _band(self, part: Part) -> Band:
        return ARRIVAL_BAND if part[0] in self.by_arrival else part[1]

    def _together(self, until: dict[Part, ReadPosition]) -> dict[Part, ReadPosition]:
        """Return the ends of a step, those of a queue by arrival at the same time: the earliest."""
        together: defaultdict[str, list[Part]] = defaultdict(list)
        for part in until:
            if part[0] in self.by_arrival:
                together[part[0]].append(part)
        for parts in together.values():
            if not all(until[part].is_last for part in parts):
                end = min(until[part] for part in parts)._replace(is_last=False)
                until |= dict.fromkeys(parts, end)
        return until

    def _step(self, parts: list[Part]) -> bool:
        after = {part: self.after[part] for part in parts}
        until = self._together(rows.ends(after, max(LEAST, PAGE // max(1, len(parts))))) if parts else {}
        if not self.index.load_until(self.number, {part: score(part[1], at.queued_at) for part, at in until.items()}):
            return False
        self._push(rows.between(after, until))
        self.after |= until
        ended = {part: at for part, at in until.items() if at.is_last}
        if not ended:
            return True
        if not self.index.load_until(self.number, dict.fromkeys(ended)):
            return False
        self._push(rows.between(ended, dict.fromkeys(ended, END)))  # what came after the look-up
        for part in ended:
            del self.after[part]
        return True

    def _push(self, lanes: Iterable[PackedLane]) -> None:
        lanes = list(lanes)
        self.tasks += sum(lane.size for lane in lanes)
        self.index.push_lanes(lanes)
        self.end_step()
