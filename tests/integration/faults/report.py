"""All faults one after the other, and the table of their figures."""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TextIO

from tests.integration.faults import timing
from tests.integration.faults.arena import Arena
from tests.integration.faults.run import Metrics, Run, run_on
from tests.integration.faults.scenarios import FAULTS, STANDSTILL_LIMIT, STANDSTILL_LIMITS, Fault, nothing
from tests.integration.faults.stepping import Skipped

QUEUED = 100_000
#: Tasks of 15 to 60 s in each run. They take most of its time.
LONG_COUNT = 4
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


@dataclass(frozen=True, slots=True)
class Row:
    """What one fault did to a run; ``limit``: the longest standstill that it may cause (s)."""

    fault: str
    tasks: int
    figures: Metrics
    standstill: float
    limit: float
    flowing: float | None
    silent: int
    said: list[str]

    @property
    def passed(self) -> bool:
        """Whether nothing was lost, doubled or broken, and work did not stand still for too long, or silently."""
        return not self.figures.faults and self.standstill <= self.limit and not self.silent

    def __str__(self) -> str:
        found = self.figures
        counts = (len(found.lost), len(found.doubled) + len(found.stale), len(found.over_cap) + len(found.broken))
        rest = found.leases + bool(found.apart)
        stood = f"{self.standstill:.1f} (<= {self.limit:g})"
        flowing = "" if self.flowing is None else f"{self.flowing:.1f}"
        said = ", ".join(self.said) or "-"
        failed = "" if self.passed else " **FAILED**"
        cells = (f"{self.fault}{failed}", self.tasks, *counts, rest, stood, flowing, said)
        return f"| {' | '.join(map(str, cells))} |"


@dataclass
class Report:
    """Runs the faults and gathers what they say."""

    arena: Arena
    folder: Path
    progress: TextIO  # gets a line for each fault
    seed: int
    count: int
    rows: list[Row] = field(default_factory=list)
    measured: dict[str, float] = field(default_factory=dict)
    timings: list[Line] = field(default_factory=list)
    broken: list[str] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)
    inversions: int = 0

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
        except Skipped as reason:
            self.skipped.append(f"{name}: {reason}")
            said = f"skipped: {reason}"
        except Exception:  # noqa: BLE001 - the other faults are worth running all the same
            self.broken.append(name)
            said = f"BROKEN\n{traceback.format_exc()}"
        print(f"{name}: {time.monotonic() - began:.1f} s, {said}", file=self.progress, flush=True)

    def _run(self, fault: Fault, seed: int) -> str:
        folder = self.folder / fault.__name__
        with run_on(self.arena, folder, seed=seed, count=self.count, long_count=LONG_COUNT) as run:
            fault(run)
            figures = run.finish()
            if fault is nothing:
                self.inversions = len(run.inversions())
            flowing = max((run.measured[name] for name in run.measured if name.startswith("flowing")), default=None)
            row = Row(
                fault=(fault.__doc__ or fault.__name__).splitlines()[0].rstrip("."),
                tasks=len(run.order),
                figures=figures,
                standstill=run.watch.standstill,
                limit=STANDSTILL_LIMITS.get(fault, STANDSTILL_LIMIT),
                flowing=flowing,
                silent=run.watch.silent,
                said=list(run.watch.said),
            )
            self.rows.append(row)
            self.measured |= {name: value for name, value in run.measured.items() if not name.startswith("flowing")}
            told = [f"{key} {value:.4g}" for key, value in run.measured.items()]
            return "\n  ".join([str(row), *told, *figures.faults[:5]])

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
        """The figures of the second table."""
        errors = "enqueue errors while Valkey was down"
        return [
            Line("starts out of order within a lane, faults aside", 0, self.inversions),
            *self.timings,
            *(Line(name, 0 if name == errors else None, value) for name, value in self.measured.items()),
        ]

    @property
    def passed(self) -> bool:
        """Whether every fault ran, and every figure is within its limit."""
        return not self.broken and all(row.passed for row in self.rows) and all(line.passed for line in self.lines)

    def table(self) -> str:
        """Return both tables in Markdown."""
        rest = [f"\nskipped: {each}" for each in self.skipped]
        rest += [f"\nbroken: {', '.join(self.broken)}"] if self.broken else []
        heads = (
            "fault", "tasks", "lost", "recorded twice", "cap or rate broken", "slots left, index apart",
            "longest standstill (s)", "flowing again after (s)", "said meanwhile",
        )  # fmt: skip
        first = ["", f"| {' | '.join(heads)} |", "|---" * len(heads) + "|", *map(str, self.rows)]
        second = ["", "| figure | must be | got |", "|---|---|---|", *map(str, self.lines)]
        return "\n".join([*first, *second, *rest])
