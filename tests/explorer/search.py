"""Try every schedule of two transitions with at most two preemptions, and every fault; shrink what breaks."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

from queue_app.exceptions import TaskQueueError
from tests.explorer.controller import Controller, Fault, Plan, Run, Step, Switch
from tests.explorer.dependence import matters
from tests.explorer.gates import BREAK, DIE, LOSE, POSTGRESQL
from tests.explorer.transitions import EVERYWHERE, TRANSITIONS
from tests.explorer.world import World

FAULTS: Final = (DIE, LOSE, BREAK)


@dataclass(frozen=True, slots=True)
class Meeting:
    """Transitions that begin at the same time, and the state in which they find the task."""

    names: tuple[str, ...]
    state: str

    def __str__(self) -> str:
        return f"{' x '.join(self.names)} ({self.state})"


@dataclass(slots=True)
class Finding:
    """A schedule that breaks a promise."""

    meeting: Meeting
    plan: Plan
    problems: list[str]
    trace: list[str]

    def __str__(self) -> str:
        lines = [f"{self.meeting}, plan {self.plan}", *(f"  {line}" for line in self.trace)]
        return "\n".join([*lines, *(f"  -> {problem}" for problem in self.problems)])

    def to_json(self) -> dict[str, Any]:
        """Return what ``replay`` needs."""
        return {"names": self.meeting.names, "state": self.meeting.state, "plan": asdict(self.plan)}


@dataclass(slots=True)
class Tally:
    """What a search did."""

    meetings: int = 0
    schedules: int = 0
    seconds: float = 0.0
    findings: list[Finding] = field(default_factory=list)


def meetings() -> list[Meeting]:
    """Return every unordered pair of transitions, in each state in which both mean something."""
    names = list(TRANSITIONS)
    found = []
    for number, one in enumerate(names):
        for other in names[number:]:
            both = [state for state in TRANSITIONS[one].states if state in TRANSITIONS[other].states]
            if both == list(EVERYWHERE):  # neither is about the task
                both = ["queued", "executing", "proposed"]
            found += [Meeting((one, other), state) for state in both]
    return found


class Explorer:
    """Runs plans on a world and judges them."""

    def __init__(self, world: World, control: Controller) -> None:
        self.world, self.control = world, control
        self._inside: dict[tuple[str, str, int], set[int]] = {}
        self._alone: dict[tuple[str, str, int], list[Step]] = {}
        self._anywhere: dict[str, list[Step]] = {}

    def try_plan(self, meeting: Meeting, plan: Plan) -> tuple[Run, list[str]]:
        """Run one plan; return what happened and what it broke."""
        world = self.world
        world.begin(meeting.state)
        labels = _labels(meeting.names)
        actions = {
            label: (lambda name=name, number=number: TRANSITIONS[name].act(world, number))
            for number, (label, name) in enumerate(zip(labels, meeting.names, strict=True))
        }
        run = self.control.run(actions, plan)
        problems = [f"{label}: {problem}" for label, problem in self._errors(run)]
        if run.stuck:
            return run, [*problems, "all actors wait for each other"]
        problems += world.broken_now()
        if not run.faulted:
            problems += world.without_slot()
        for label, name in zip(labels, meeting.names, strict=True):
            broken = TRANSITIONS[name].broken
            if broken and (label in run.values or label != run.faulted):
                problems += broken(world, run.values.get(label), run.errors.get(label))
        problems += world.settle()
        return run, problems

    def _errors(self, run: Run) -> Iterator[tuple[str, str]]:
        for label, error in run.errors.items():
            if label != run.faulted and not isinstance(error, TaskQueueError):
                yield label, f"{type(error).__name__}: {' '.join(str(error).split())[:160]}"

    def explore(
        self, meeting: Meeting, *, faults: bool = True, until: float | None = None
    ) -> Iterator[tuple[int, Finding | None]]:
        """Try every plan of a meeting; yield after each (1, what it broke)."""
        seen: set[tuple[object, ...]] = set()
        for plan in self.plans(meeting, faults=faults):
            if until is not None and time.monotonic() > until:
                return
            run, problems = self.try_plan(meeting, plan)
            finding = None
            shape = run.shape()
            if problems and shape not in seen:
                finding = Finding(meeting, plan, problems, [str(step) for step in run.trace])
            seen.add(shape)
            yield 1, finding

    def plans(self, meeting: Meeting, *, faults: bool) -> Iterator[Plan]:
        """Yield plans, the simplest first. Steps are counted over all actors.

        A turn passes on only before a step on which something of the other actor may depend (``dependence``).
        """
        numbers = range(len(meeting.names))
        alone = [self._steps_alone(meeting, number) for number in numbers]
        pairs = [(first, (first + 1) % len(alone)) for first in numbers]
        places = {
            first: list(self._switches(meeting, first, alone[first], self._steps_anywhere(meeting.names[second])))
            for first, second in pairs
        }
        for first, _ in pairs:
            yield Plan(first)
        for first, _ in pairs:
            yield from (Plan(first, (one,)) for one in places[first])
        for first, second in pairs:
            for one in places[first]:
                begins = one.step + one.inside
                yield from (Plan(first, (one, Switch(begins + two.step, two.inside))) for two in places[second])
        if faults:
            yield from self._faulty(pairs, alone, places)

    def _faulty(
        self, pairs: list[tuple[int, int]], alone: list[list[Step]], places: dict[int, list[Switch]]
    ) -> Iterator[Plan]:
        for first, second in pairs:
            yield from (Plan(first, (), Fault(step, kind)) for step in range(1, len(alone[first])) for kind in FAULTS)
            for one in (each for each in places[first] if not each.inside):
                for two in (each for each in places[second] if not each.inside):
                    at = one.step + two.step
                    yield from (Plan(first, (one,), Fault(at, kind)) for kind in (DIE, LOSE))

    def _switches(self, meeting: Meeting, number: int, steps: list[Step], others: list[Step]) -> Iterator[Switch]:
        """Yield where the turn of an actor may pass on, counted from its beginning."""
        inside = self._inside[meeting.names[number], meeting.state, number]
        for step in range(1, len(steps)):
            if matters(steps[step], others):
                yield Switch(step)
                if step in inside:
                    yield Switch(step, inside=True)

    def _steps_anywhere(self, name: str) -> list[Step]:
        """Return the steps that a transition may take: alone it may find nothing to do where after another it does."""
        if name not in self._anywhere:
            found = [self._steps_alone(Meeting((name,), state), 0) for state in TRANSITIONS[name].states]
            self._anywhere[name] = list({(step.server, step.what): step for steps in found for step in steps}.values())
        return self._anywhere[name]

    def _steps_alone(self, meeting: Meeting, number: int) -> list[Step]:
        """Return the steps that a transition takes alone, and learn inside which it can be held."""
        name = meeting.names[number]
        key = (name, meeting.state, number)
        if key not in self._alone:
            label = _labels(meeting.names)[number]
            base = [step for step in self._run_alone(meeting, number, Plan(number)).trace if step.actor == label]
            self._alone[key], self._inside[key] = base, set()
            for step in range(1, len(base)):
                if base[step].server == POSTGRESQL:
                    run = self._run_alone(meeting, number, Plan(number, (Switch(step, inside=True),)))
                    if any(each.note == "held" for each in run.trace):
                        self._inside[key].add(step)
        return self._alone[key]

    def _run_alone(self, meeting: Meeting, number: int, plan: Plan) -> Run:
        self.world.begin(meeting.state)
        labels = _labels(meeting.names)
        actions = {label: (lambda: None) for label in labels}
        actions[labels[number]] = lambda: TRANSITIONS[meeting.names[number]].act(self.world, number)
        return self.control.run(actions, plan)

    def shrink(self, finding: Finding) -> Finding:
        """Return the finding with as few preemptions as still break a promise."""
        plan = finding.plan
        for number in range(len(plan.switches)):
            fewer = Plan(plan.first, plan.switches[:number] + plan.switches[number + 1 :], plan.fault)
            run, problems = self.try_plan(finding.meeting, fewer)
            if problems:
                return self.shrink(Finding(finding.meeting, fewer, problems, [str(step) for step in run.trace]))
        return finding


def _labels(names: tuple[str, ...]) -> list[str]:
    return [name if names.count(name) == 1 else f"{name}-{number + 1}" for number, name in enumerate(names)]


def search(
    explorer: Explorer,
    wanted: list[Meeting],
    *,
    faults: bool = True,
    seconds: float | None = None,
    per_meeting: int = 1,
    report: Any = None,
) -> Tally:
    """Explore meetings; stop each at ``per_meeting`` findings, and all after ``seconds``."""
    tally, began = Tally(), time.monotonic()
    until = None if seconds is None else began + seconds
    for meeting in wanted:
        if until is not None and time.monotonic() > until:
            break
        tally.meetings += 1
        found, before, at = 0, tally.schedules, time.monotonic()
        for count, finding in explorer.explore(meeting, faults=faults, until=until):
            tally.schedules += count
            if finding is not None:
                tally.findings.append(explorer.shrink(finding))
                found += 1
                if found >= per_meeting:
                    break
        if report is not None:
            report(meeting, tally.schedules - before, time.monotonic() - at, tally.findings[-found:] if found else [])
    tally.seconds = time.monotonic() - began
    return tally


def sample(seed: int) -> list[Meeting]:
    """Return all meetings in an order of this seed."""
    found = meetings()
    random.Random(seed).shuffle(found)
    return found


def load(path: Path) -> tuple[Meeting, Plan]:
    """Read what ``Finding.to_json`` wrote."""
    data = json.loads(path.read_text())
    plan = data["plan"]
    fault = Fault(*plan["fault"]) if plan["fault"] else None
    return Meeting(tuple(data["names"]), data["state"]), Plan(
        plan["first"], tuple(Switch(*s) for s in plan["switches"]), fault
    )
