"""How many workers a queue could keep busy now with tasks that no limit holds back."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

#: Assumed run time of a task, in seconds, when no task has ended lately.
UNKNOWN_SECONDS: Final = 1.0


@dataclass(slots=True)
class Headroom:
    """The room at a gate: free slots, and starts per second (``None``: no limit)."""

    free: float | None = None
    rate: float | None = None
    is_closed: bool = False
    starts: float = math.inf  # left in the period
    slots: float = math.inf

    def open_for(self, seconds: float, mean: float) -> None:
        """Compute how many tasks may start within ``seconds`` if a task runs for ``mean`` seconds."""
        if self.is_closed:
            self.starts = self.slots = 0.0
            return
        if self.free is not None:
            self.slots = max(0.0, self.free)
            self.starts = self.slots * max(1.0, seconds / mean)
        if self.rate is not None:
            self.starts = min(self.starts, max(1.0, self.rate * seconds))


@dataclass(frozen=True, slots=True)
class Waiting:
    """Queued tasks of one lane: number, slots per task, whether a worker can run them, and the room at their gates."""

    count: int
    weight: int
    able: bool
    gates: Sequence[Headroom]


@dataclass(frozen=True, slots=True)
class Demand:
    """The queued tasks of a queue, and the workers that they could keep busy."""

    queued: int
    runnable: int  # queued tasks that may start within the period
    active_slots: int
    mean_seconds: float  # run time of a task
    backlog_seconds: float  # slot time of the runnable tasks
    desired_slots: int
    desired_workers: int


def demand(  # noqa: PLR0913 - by name
    lanes: Iterable[Waiting], gates: Iterable[Headroom], *, active_slots: int, mean: float, seconds: float, slots: int
) -> Demand:
    """Return the demand if workers with ``slots`` slots each finish the runnable tasks within ``seconds``.

    A lane starts at most what each of its gates has left; lanes that share a gate are served in
    the given order. A task holds a slot while it runs, so n tasks need at most n slots.
    """
    mean = max(mean, 0.001)
    for gate in gates:
        gate.open_for(seconds, mean)
    queued, runnable, backlog, extra = 0, 0, 0.0, 0.0
    for lane in lanes:
        queued += lane.count
        if not lane.able:
            continue
        starts = math.floor(min([lane.count, *(gate.starts for gate in lane.gates)]))
        if starts <= 0:
            continue
        tasks = min([starts * mean / seconds, starts, *(gate.slots for gate in lane.gates)])
        for gate in lane.gates:
            gate.starts -= starts
            gate.slots -= tasks
        runnable += starts
        backlog += starts * mean * lane.weight
        extra += tasks * lane.weight
    desired = active_slots + math.ceil(round(extra, 6))
    return Demand(
        queued=queued,
        runnable=runnable,
        active_slots=active_slots,
        mean_seconds=round(mean, 3),
        backlog_seconds=round(backlog, 3),
        desired_slots=desired,
        desired_workers=math.ceil(desired / slots),
    )
