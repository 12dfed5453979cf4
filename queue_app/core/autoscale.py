"""How many workers a queue could use now: those that work which no limit holds back would keep busy."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

#: Stands in for the run time of tasks of which none has ended lately (seconds).
UNKNOWN_SECONDS: Final = 1.0


@dataclass(slots=True)
class Gate:
    """A limit that lanes pass: how many more may run at once, and how many start in a second (``None``: any)."""

    free: float | None = None
    rate: float | None = None
    shut: bool = False
    starts: float = math.inf  # what is left of the period that is looked at
    slots: float = math.inf

    def open_for(self, seconds: float, mean: float) -> None:
        """Work out what may start within ``seconds`` if tasks run for ``mean`` seconds."""
        if self.shut:
            self.starts = self.slots = 0.0
            return
        if self.free is not None:
            self.slots = max(0.0, self.free)
            self.starts = self.slots * max(1.0, seconds / mean)
        if self.rate is not None:
            self.starts = min(self.starts, max(1.0, self.rate * seconds))


@dataclass(frozen=True, slots=True)
class Waiting:
    """Tasks of one lane: how many, how heavy, whether a worker could run them, and the gates they pass."""

    count: int
    weight: int
    able: bool
    gates: Sequence[Gate]


@dataclass(frozen=True, slots=True)
class Demand:
    """What waits in a queue, and how many workers could be at work on it."""

    queued: int
    runnable: int  # of those, what may start within the period
    active_slots: int
    mean_seconds: float  # of run time of a task
    backlog_seconds: float  # of slot time that the runnable ones will take
    desired_slots: int
    desired_workers: int


def demand(  # noqa: PLR0913 - by name
    lanes: Iterable[Waiting], gates: Iterable[Gate], *, active_slots: int, mean: float, seconds: float, slots: int
) -> Demand:
    """Return the demand, to be worked off within ``seconds`` by workers with ``slots`` slots each.

    A lane may start what each of its gates has left. What several lanes pass is handed out
    in turn, and a task needs a slot for as long as it runs; so of n tasks at most n slots.
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
