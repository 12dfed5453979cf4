"""Try every schedule of two transitions with at most two preemptions, and every fault; shrink what breaks."""

from __future__ import annotations

import itertools
import json
import random
import time
from collections.abc import Collection, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

from queue_app.exceptions import TaskQueueError
from tests.explorer.controller import Controller, Fault, Plan, Run, Switch
from tests.explorer.dependence import HELD, Step, first_dependent, may_hold
from tests.explorer.ends import digest
from tests.explorer.gates import BREAK, CLOCK, DIE, LOSE
from tests.explorer.meetings import Meeting
from tests.explorer.monitor import READS_CLOCK
from tests.explorer.transitions import TRANSITIONS
from tests.explorer.world import World

FAULTS: Final = (DIE, LOSE, BREAK, CLOCK)

#: Maximum number of messages of a meeting in which a fault is tried after a change of turn.
LONGEST: Final = 45

#: Actors that register a worker.
REGISTER: Final = ("register", "change_profile", "work", "leave", "return")

#: A run, and the promises that it broke.
type Judged = tuple[Run, list[str]]


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


class Explorer:
    """Runs plans on a world and judges them."""

    def __init__(self, world: World, control: Controller) -> None:
        self.world, self.control = world, control
        self._fine: set[str] = set()  # ends from which everything comes right

    def try_plan(self, meeting: Meeting, plan: Plan) -> tuple[Run, list[str]]:
        """Run one plan; return what happened and what it broke."""
        world, labels = self.world, _labels(meeting.names)
        world.begin(meeting.state)
        run = self.run(meeting, plan)
        problems = [f"{label}: {problem}" for label, problem in self._errors(run)]
        if run.stuck:
            return run, [*problems, "all actors wait for each other"]
        # A worker that could not register does so again.
        damaged = _is_damaged(meeting, run) or run.faulted.startswith(REGISTER)
        problems += world.broken_now(damaged=damaged)
        if not run.faulted and not damaged:
            problems += [*world.without_slot(), *world.without_place()]
        for label, name in zip(labels, meeting.names, strict=True):
            broken = TRANSITIONS[name].broken
            if broken and (label in run.values or label != run.faulted):
                problems += broken(world, run.values.get(label), run.errors.get(label))
        return run, problems + self._settled()

    def run(self, meeting: Meeting, plan: Plan) -> Run:
        """Run one plan on the world as it is."""
        actions = {
            label: (lambda name=name, number=number: TRANSITIONS[name].act(self.world, number))
            for number, (label, name) in enumerate(zip(_labels(meeting.names), meeting.names, strict=True))
        }
        return self.control.run(actions, plan)

    def _settled(self) -> list[str]:
        """Return what is wrong after everything has come to its end. An end that was seen is not judged again."""
        end = f"{self.world.state} {digest([self.world.x, self.world.y])} {self.world.memory()}"
        if end in self._fine:
            return []
        problems = list(self.world.settle())
        if not problems:
            self._fine.add(end)
        return problems

    def _errors(self, run: Run) -> Iterator[tuple[str, str]]:
        for label, error in run.errors.items():
            if label != run.faulted and not isinstance(error, TaskQueueError):
                yield label, f"{type(error).__name__}: {' '.join(str(error).split())[:160]}"

    def explore(
        self,
        meeting: Meeting,
        *,
        faults: Collection[str] = FAULTS,
        turns: bool = True,
        drawn: int | None = None,
        seed: int = 0,
        until: float | None = None,
    ) -> Iterator[tuple[int, Finding | None]]:
        """Try every plan of a meeting; yield after each (1, what it broke).

        With ``turns`` a change of turn is combined with a fault; with ``drawn`` only so many of these plans are tried.
        """
        seen: set[tuple[object, ...]] = set()
        if drawn is None:
            runs = self.runs(meeting, faults, turns=turns)
        else:
            runs = self._drawn(meeting, faults, drawn, random.Random(f"{seed} {meeting}"))
        for run, problems in runs:
            finding = None
            shape = run.shape()
            if problems and shape not in seen:
                finding = Finding(meeting, run.plan, problems, [str(step) for step in run.trace])
            seen.add(shape)
            yield 1, finding
            if until is not None and time.perf_counter() > until:
                return

    def runs(self, meeting: Meeting, faults: Collection[str], *, turns: bool = True) -> Iterator[Judged]:
        """Run the plans of a meeting, those with fewer changes of turn first."""
        alone = [self.try_plan(meeting, Plan(first)) for first in range(len(meeting.names))]
        yield from alone
        once: list[tuple[Run, int]] = []
        for run, _ in alone:
            for judged, begin in self._preempted(meeting, run, 1):
                once.append((judged[0], begin))
                yield judged
        if faults:
            yield from self._faulty(meeting, [run for run, _ in alone], faults, turns=turns)
            if turns:
                yield from self._faulty_turns(meeting, [run for run, _ in alone], once, faults)
        for run, begin in once:
            for judged, _ in self._preempted(meeting, run, begin):
                yield judged

    def _preempted(self, meeting: Meeting, run: Run, begin: int) -> Iterator[tuple[Judged, int]]:
        """Run a plan with one more change of turn, at each step from ``begin`` on where it makes a difference.

        Yield each run, and from which step on a further change of turn makes a difference to it.

        The turn passes on before the step ``delayed``. That does the same as passing on after it, if nothing that the
        other actors do meanwhile depends on it. So the steps are tried from the last to the first, and what the others
        do is known from the plan that was run before.
        """
        trace, meanwhile = run.trace, list[Step]()
        for number in range(len(trace) - 1, begin - 1, -1):
            delayed = trace[number]
            if number + 1 == len(trace) or trace[number + 1].actor != delayed.actor:
                meanwhile = _until(delayed.actor, trace[number + 1 :])
            if first_dependent(delayed, meanwhile) is None:
                continue
            for switch in (Switch(number), Switch(number, inside=True)):
                if switch.inside and not may_hold(delayed):
                    continue
                plan = Plan(run.plan.first, (*run.plan.switches, switch), run.plan.fault)
                other, problems = self.try_plan(meeting, plan)
                if not _took_effect(other, run, switch, delayed.actor):
                    yield (other, problems), len(other.trace)
                    continue
                done = _until(delayed.actor, other.trace[number + switch.inside :])
                if not switch.inside:
                    meanwhile = done
                needed = first_dependent(delayed, done) if len(meeting.names) == 2 else 0
                yield (other, problems), number + switch.inside + (needed or 0) + 1

    def _faulty(self, meeting: Meeting, alone: list[Run], faults: Collection[str], *, turns: bool) -> Iterator[Judged]:
        """Let a fault meet each message while the actors go one after the other.

        With ``turns`` the turn then changes once after a lost answer or a broken connection.
        """
        for run in alone:
            for fault in faults_of(run, 1, faults):
                judged = self.try_plan(meeting, Plan(run.plan.first, (), fault))
                yield judged
                if turns and fault.kind in (LOSE, BREAK):
                    for other, _ in self._preempted(meeting, judged[0], fault.step + 1):
                        yield other

    def _faulty_turns(
        self, meeting: Meeting, alone: list[Run], once: list[tuple[Run, int]], faults: Collection[str]
    ) -> Iterator[Judged]:
        """Let a fault follow a change of turn, in meetings of at most ``LONGEST`` messages.

        It meets the actor that goes on then, or the message that waited for its turn.
        """
        if len(meeting.names) == 2 and max(len(run.trace) for run in alone) > LONGEST:
            return
        for plan in _plans_with_faults(meeting, alone, once, faults):
            yield self.try_plan(meeting, plan)

    def _drawn(self, meeting: Meeting, faults: Collection[str], count: int, chance: random.Random) -> Iterator[Judged]:
        """Run ``count`` plans with a change of turn and a fault, whichever comes first; also in long meetings."""
        alone = [self.try_plan(meeting, Plan(first))[0] for first in range(len(meeting.names))]
        once: list[tuple[Run, int]] = []
        for run in alone:
            once += [(judged[0], begin) for judged, begin in self._preempted(meeting, run, 1)]
        plans = list(_plans_with_faults(meeting, alone, once, faults))
        kinds = set(faults) & {LOSE, BREAK}
        plans += [Plan(run.plan.first, (), fault) for run in alone for fault in faults_of(run, 1, kinds)]
        for plan in chance.sample(plans, min(count, len(plans))):
            judged = self.try_plan(meeting, plan)
            later = len(judged[0].trace) - 1
            if plan.fault is not None and not plan.switches and later > plan.fault.step:
                switch = Switch(chance.randint(plan.fault.step + 1, later))
                judged = self.try_plan(meeting, Plan(plan.first, (switch,), plan.fault))
            yield judged

    def shrink(self, finding: Finding) -> Finding:
        """Return the finding with as few preemptions as still break a promise."""
        plan = finding.plan
        for number in range(len(plan.switches)):
            fewer = Plan(plan.first, plan.switches[:number] + plan.switches[number + 1 :], plan.fault)
            run, problems = self.try_plan(finding.meeting, fewer)
            if problems:
                return self.shrink(Finding(finding.meeting, fewer, problems, [str(step) for step in run.trace]))
        return finding


def _is_damaged(meeting: Meeting, run: Run) -> bool:
    """Whether keys were lost, and no reconciliation has begun since."""
    lost = {name for name in meeting.names if TRANSITIONS[name].damages}
    if not lost:
        return False
    actors = [step.actor for step in run.trace if step.server]
    healed = "reconcile" in actors and not run.faulted.startswith("reconcile")
    if "flush" in lost or not healed or not lost & set(actors):
        return True
    return actors.index("reconcile") < max(number for number, actor in enumerate(actors) if actor in lost)


def _took_effect(run: Run, before: Run, switch: Switch, actor: str) -> bool:
    """Whether the turn passed on where it should: not if no other actor could go on."""
    if run.stuck or len(run.trace) <= switch.step or _told(run, switch.step) != _told(before, switch.step):
        return False
    step = run.trace[switch.step]
    return step.actor == actor and step.note == HELD if switch.inside else step.actor != actor


def _told(run: Run, count: int) -> list[tuple[str, str]]:
    return [(step.actor, step.what) for step in run.trace[:count]]


def _until(actor: str, steps: Sequence[Step]) -> list[Step]:
    """Return the steps before the next one of an actor."""
    return list(itertools.takewhile(lambda step: step.actor != actor, steps))


def faults_of(run: Run, begin: int, kinds: Collection[str]) -> Iterator[Fault]:
    """Yield the faults that make a difference, from step ``begin`` on.

    A process that dies after a step that changed nothing might as well have died before it. A lost answer of such a
    step is a connection that broke before it. Between two steps that change something, a connection to a server breaks
    once. A clock that goes back is seen by the next script that reads it.
    """
    changed: dict[str, bool] = {}  # whether an actor's last step changed what stays
    broke = set[tuple[str, str]]()  # which connections have broken since
    for number, step in enumerate(run.trace):
        if number >= begin and step.server:
            if DIE in kinds and changed.get(step.actor):
                yield Fault(number, DIE)
            if LOSE in kinds and step.lasting:
                yield Fault(number, LOSE)
            if BREAK in kinds and (step.lasting or (step.actor, step.server) not in broke):
                yield Fault(number, BREAK)
                broke.add((step.actor, step.server))
            if CLOCK in kinds and READS_CLOCK in step.touched.reads:
                yield Fault(number, CLOCK)
        changed[step.actor] = step.lasting
        if step.lasting:
            broke = {each for each in broke if each[0] != step.actor}


def _plans_with_faults(
    meeting: Meeting, alone: list[Run], once: list[tuple[Run, int]], faults: Collection[str]
) -> Iterator[Plan]:
    """Yield the plans of ``once`` with a fault after the change of turn."""
    kinds = set(faults) - ({BREAK, CLOCK} if len(meeting.names) == 2 else {BREAK})
    for run, begin in once:
        delayed = run.trace[run.plan.switches[-1].step :]
        end = begin + len(_until(alone[run.plan.first].trace[0].actor, delayed)) + 1
        for fault in itertools.takewhile(lambda each, end=end: each.step <= end, faults_of(run, begin, kinds)):  # type: ignore[misc]
            yield Plan(run.plan.first, run.plan.switches, fault)


def _labels(names: tuple[str, ...]) -> list[str]:
    return [name if names.count(name) == 1 else f"{name}-{number + 1}" for number, name in enumerate(names)]


def search(
    explorer: Explorer,
    wanted: list[Meeting],
    *,
    seconds: float | None = None,
    per_meeting: int = 1,
    report: Any = None,
    **options: Any,
) -> Tally:
    """Explore meetings, as ``explore`` does; stop each at ``per_meeting`` findings, and all after ``seconds``."""
    tally, began = Tally(), time.perf_counter()
    until = None if seconds is None else began + seconds
    for meeting in wanted:
        if until is not None and time.perf_counter() > until:
            break
        tally.meetings += 1
        found, before, at = 0, tally.schedules, time.perf_counter()
        for count, finding in explorer.explore(meeting, until=until, **options):
            tally.schedules += count
            if finding is not None:
                tally.findings.append(explorer.shrink(finding))
                found += 1
                if found >= per_meeting:
                    break
        if report is not None:
            report(
                meeting, tally.schedules - before, time.perf_counter() - at, tally.findings[-found:] if found else []
            )
    tally.seconds = time.perf_counter() - began
    return tally


def load(path: Path) -> tuple[Meeting, Plan]:
    """Read what ``Finding.to_json`` wrote."""
    data = json.loads(path.read_text())
    plan = data["plan"]
    fault = Fault(*plan["fault"]) if plan["fault"] else None
    return Meeting(tuple(data["names"]), data["state"]), Plan(
        plan["first"], tuple(Switch(*s) for s in plan["switches"]), fault
    )
