"""All faults one after the other, and the table of their figures."""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from tests.integration.faults import timing
from tests.integration.faults.arena import Arena
from tests.integration.faults.run import Metrics, Run, run_on
from tests.integration.faults.scenarios import FAULTS, Fault, nothing

QUEUED = 100_000
REPEATS = 3


@dataclass(frozen=True, slots=True)
class Line:
    """One figure: at most ``limit`` is allowed; ``None`` is only told."""

    name: str
    limit: float | None
    got: float

    @property
    def passed(self) -> bool:
        """Whether it is within its limit."""
        return self.limit is None or self.got <= self.limit

    def __str__(self) -> str:
        limit = "" if self.limit is None else f"<= {self.limit:g}" if self.limit else "0"
        return f"| {self.name} | {limit} | {self.got:.4g}{'' if self.passed else '  FAILED'} |"


@dataclass
class Report:
    """Runs the faults and gathers what they say."""

    arena: Arena
    folder: Path
    seed: int
    count: int
    figures: list[Metrics] = field(default_factory=list)
    measured: dict[str, float] = field(default_factory=dict)
    timings: list[Line] = field(default_factory=list)
    broken: list[str] = field(default_factory=list)
    inversions: int = 0
    tasks: int = 0

    def run(self, only: list[str]) -> None:
        """Run all faults, or those named, and print a line for each."""
        for number, fault in enumerate(FAULTS):
            if not only or fault.__name__ in only:
                self._attempt(fault.__name__, lambda at=number, each=fault: self._run(each, self.seed + at))
        if not only or "timing" in only:
            for name, measure in (("death", self._deaths), ("everything", self._everything), ("index", self._index)):
                self._attempt(f"timing: {name}", measure)

    def _attempt(self, name: str, action: Callable[[], str]) -> None:
        began = time.monotonic()
        try:
            said = action()
        except Exception:  # noqa: BLE001 - the other faults are worth running all the same
            self.broken.append(name)
            said = f"BROKEN\n{traceback.format_exc()}"
        print(f"{name}: {time.monotonic() - began:.1f} s, {said}", flush=True)

    def _run(self, fault: Fault, seed: int) -> str:
        with run_on(self.arena, self.folder / fault.__name__, seed=seed, count=self.count) as run:
            fault(run)
            figures = run.finish()
            self.figures.append(figures)
            self.tasks += len(run.order)
            if fault is nothing:
                self.inversions = len(run.inversions())
            self.measured |= run.measured
            told = [f"{key} {value:.4g}" for key, value in run.measured.items()]
            return ", ".join([f"{len(run.order)} tasks", *told, *figures.faults[:5]])

    def _timed(self, name: str, action: Callable[[Run], float]) -> list[float]:
        found = []
        for number in range(REPEATS):
            with run_on(self.arena, self.folder / f"{name}-{number}", seed=self.seed, count=0) as run:
                found.append(action(run))
        return found

    def _deaths(self) -> str:
        killed = self._timed("killed", lambda run: timing.death_to_rerun(run, silent=False))
        silent = self._timed("silent", lambda run: timing.death_to_rerun(run, silent=True))
        name = "seconds from a worker's death to its task running again, heartbeat 1 s"
        self.timings += [
            Line(f"{name}: killed on this machine", 5, max(killed)),
            Line(f"{name}: known by its silence only", 5, max(silent)),
        ]
        return f"killed {killed}, silent {silent}"

    def _everything(self) -> str:
        doubles: list[int] = []

        def measure(run: Run) -> float:
            seconds, twice = timing.everything_killed(run)
            doubles.append(twice)
            return seconds

        found = self._timed("everything", measure)
        self.timings += [
            Line("everything killed at 80 of 200 tasks, default settings: seconds until all are done", 20, max(found)),
            Line("the same: tasks that ran twice to the end", 2, max(doubles)),
        ]
        return f"{found}, twice {doubles}"

    def _index(self) -> str:
        with run_on(self.arena, self.folder / "index", seed=self.seed, count=0) as run:
            seconds = timing.flush_to_claims(run, QUEUED)
        self.timings.append(Line(f"seconds from FLUSHALL of {QUEUED} queued tasks to claims flowing", 5, seconds))
        return f"{seconds:.2f} s"

    @property
    def lines(self) -> list[Line]:
        """The figures of the table."""

        def total(of: Callable[[Metrics], int]) -> int:
            return sum(of(figures) for figures in self.figures)

        errors = "enqueue errors while Valkey was down"
        return [
            Line(f"of {self.tasks} acknowledged tasks, not done in the end", 0, total(lambda each: len(each.lost))),
            Line("tasks with two recorded successes", 0, total(lambda each: len(each.doubled))),
            Line("results of a stale attempt accepted", 0, total(lambda each: len(each.stale))),
            Line("instants at which a cap was exceeded", 0, total(lambda each: len(each.over_cap))),
            Line("starts out of order within a lane, faults aside", 0, self.inversions),
            Line("slots still held when all is done", 0, total(lambda each: each.leases)),
            Line("runs after which the index differed from the rows", 0, total(lambda each: bool(each.apart))),
            *self.timings,
            *(Line(name, 0 if name == errors else None, value) for name, value in self.measured.items()),
        ]

    @property
    def passed(self) -> bool:
        """Whether every fault ran, and every figure is within its limit."""
        return not self.broken and all(line.passed for line in self.lines)

    def table(self) -> str:
        """Return the table in Markdown."""
        broken = [f"\nbroken: {', '.join(self.broken)}"] if self.broken else []
        rows = [str(line) for line in self.lines]
        return "\n".join(["", "| figure | must be | got |", "|---|---|---|", *rows, *broken])
