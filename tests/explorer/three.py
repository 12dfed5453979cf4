"""Three actors that share a gate, a workflow or a schedule: a seed draws from more orders than can be tried."""

from __future__ import annotations

import math
import random
import time
from collections.abc import Collection, Iterator
from typing import Any, Final

from tests.explorer import flows, said_twice
from tests.explorer.controller import Plan, Run, Switch
from tests.explorer.meetings import Meeting
from tests.explorer.search import FAULTS, Explorer, Finding, Tally, faults_of
from tests.explorer.transitions import TRANSITIONS
from tests.explorer.world import OWN_STATES

#: The states in which the actors share a gate, a workflow or a schedule.
SHARED: Final = ("queued", "executing", "proposed", "arrival", "full", *flows.STATES, "ticked", "paused")
#: Number of schedules of each meeting.
SCHEDULES: Final = 12
#: Maximum number of changes of turn.
SWITCHES: Final = 4
#: Actors that act on the task of their number, of which there are two.
NUMBERED: Final = ("end_parent", "fail_parent", "add_task")
#: Said twice, these mean something else after what two others may do: a retry that failed again, a new task.
INEXACT: Final = {name for name, command in said_twice.COMMANDS.items() if command.unless}


def names_in(state: str) -> list[str]:
    """Return the transitions that are drawn in a state."""
    left_out = {said_twice.LIVES_ON, *INEXACT}
    return [
        name
        for name, transition in TRANSITIONS.items()
        if state in transition.states and not transition.damages and name not in left_out
    ]


def draw(chance: random.Random, states: Collection[str] = SHARED) -> Meeting:
    """Return a meeting of three."""
    own = {state: name for name, state in OWN_STATES.items()}
    while True:
        (state,) = chance.choices(list(states), [len(names_in(state)) for state in states])
        names = chance.choices(names_in(state), k=2)
        names.append(own.get(state) or chance.choice(names_in(state)))
        chance.shuffle(names)
        names.sort(key=lambda name: name not in NUMBERED)
        if len(set(names) & set(said_twice.COMMANDS)) <= 1 and names[2] not in NUMBERED:
            return Meeting(tuple(names), state)


def draw_plan(chance: random.Random, alone: Run, faults: Collection[str]) -> Plan:
    """Return a schedule with some changes of turn, and in one of three a fault; ``alone``: a run without either."""
    steps = range(1, max(2, len(alone.trace)))
    chosen = sorted(chance.sample(steps, min(len(steps), chance.randint(1, SWITCHES))))
    possible = list(faults_of(alone, 1, faults)) if faults and chance.random() < 1 / 3 else []
    switches = tuple(Switch(step, inside=chance.random() < 1 / 3) for step in chosen)
    return Plan(alone.plan.first, switches, chance.choice(possible) if possible else None)


def search_three(
    explorer: Explorer,
    seed: int,
    *,
    count: int | None = None,
    seconds: float | None = None,
    faults: Collection[str] = FAULTS,
    meetings: Collection[Meeting] = (),
    report: Any = None,
) -> Tally:
    """Try schedules of ``count`` meetings that the seed draws, or of some of ``meetings``; stop after ``seconds``."""
    chance, tally, began = random.Random(seed), Tally(), time.perf_counter()
    until = math.inf if seconds is None else began + seconds
    while tally.meetings < (math.inf if count is None else count) and time.perf_counter() < until:
        meeting = chance.choice(list(meetings)) if meetings else draw(chance)
        tally.meetings += 1
        before, found = tally.schedules, list[Finding]()
        for finding in _try(explorer, meeting, chance, faults):
            tally.schedules += 1
            if finding is not None:
                found.append(finding)
            if found or time.perf_counter() > until:
                break
        tally.findings += found
        if report is not None:
            report(meeting, tally.schedules - before, time.perf_counter() - began, found)
        if found and meetings:
            break
    tally.seconds = time.perf_counter() - began
    return tally


def _try(
    explorer: Explorer, meeting: Meeting, chance: random.Random, faults: Collection[str]
) -> Iterator[Finding | None]:
    alone = [explorer.try_plan(meeting, Plan(first)) for first in range(3)]
    for number in range(SCHEDULES):
        run, problems = alone[number] if number < len(alone) else (None, [])
        if run is None:
            plan = draw_plan(chance, alone[chance.randrange(3)][0], faults)
            run, problems = explorer.try_plan(meeting, plan)
        finding = Finding(meeting, run.plan, problems, [str(step) for step in run.trace]) if problems else None
        yield finding and explorer.shrink(finding)
