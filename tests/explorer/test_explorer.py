"""A bounded part of the exploration, drawn anew for each run; ``./dev explore`` tries all of it."""

import secrets

import pytest

from queue_app.index import get_index
from tests.explorer.controller import Fault, Plan, Switch
from tests.explorer.ends import digest
from tests.explorer.gates import CLOCK, DIE
from tests.explorer.meetings import Meeting, meetings, sample
from tests.explorer.search import search
from tests.explorer.transitions import TRANSITIONS
from tests.explorer.twins import find_twin
from tests.support import index_state

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("rows")]
#: How long the sample is tried. A loaded machine tries only its first schedules, each of which is judged.
SECONDS = 8.0


def test_a_sample_of_all_meetings_breaks_no_promise(explorer):
    seed = secrets.randbelow(10**8)
    print(f"seed {seed}: ./dev explore --seed {seed} goes the same way")
    tally = search(explorer, sample(seed), seconds=SECONDS)
    assert tally.schedules > 0
    assert not tally.findings, "\n\n".join(map(str, tally.findings))


def test_every_transition_does_something_in_each_of_its_states(explorer):
    """A transition that finds nothing to do would make its meetings empty."""
    for name, transition in TRANSITIONS.items():
        for state in transition.states:
            run, problems = explorer.try_plan(Meeting((name,), state), Plan())
            assert len(run.trace) > 1, (name, state)
            assert not problems, (name, state, problems)


def test_an_actor_is_held_inside_its_statement_while_the_other_waits_for_the_row(explorer):
    run, problems = explorer.try_plan(Meeting(("due", "cancel"), "scheduled"), Plan(0, (Switch(1, inside=True),)))
    notes = [(step.actor, step.note) for step in run.trace if step.note]
    assert notes[:2] == [("due", "held"), ("cancel", "waits")]
    assert not problems


def test_an_actor_that_dies_leaves_nothing_that_is_not_repaired(explorer):
    run, problems = explorer.try_plan(Meeting(("complete",), "executing"), Plan(0, (), Fault(2, DIE)))
    assert run.faulted == "complete"
    assert not problems


def test_a_clock_that_goes_back_stops_nothing(explorer):
    meeting = Meeting(("claim", "reconcile"), "queued")
    run, problems = explorer.try_plan(meeting, Plan(0, (Switch(2),), Fault(4, CLOCK)))
    assert [step.note for step in run.trace if step.note] == [CLOCK]
    assert not problems


def test_runs_that_leave_the_same_behind_have_the_same_end(explorer):
    def end_after(plan: Plan) -> str:
        world.begin(meeting.state)
        explorer.run(meeting, plan)
        return digest([world.x, world.y])

    world, meeting = explorer.world, Meeting(("claim", "cancel"), "queued")
    cancelled_first, claimed_first = end_after(Plan(1)), end_after(Plan(0))
    assert end_after(Plan(1)) == cancelled_first
    assert claimed_first != cancelled_first


@pytest.mark.parametrize(
    ("pair", "state"),
    [(("claim", "cancel"), "queued"), (("complete", "give_back"), "executing"), (("due", "reprioritise"), "scheduled")],
)
def test_a_schedule_that_is_left_out_ends_as_one_that_is_tried(explorer, monkeypatch, pair, state):
    """Some of the changes of turn make no difference; all others are tried."""
    ends: set[object] = set()
    monkeypatch.setattr(explorer.world, "settle", lambda: ends.add(end_of(explorer.world)) or ())
    meeting = Meeting(pair, state)
    assert all(not problems for _, problems in explorer.runs(meeting, ()))
    tried = set(ends)
    for first in (0, 1):
        steps = range(1, len(explorer.try_plan(meeting, Plan(first))[0].trace))
        plans = [(Switch(one, inside),) for one in steps for inside in (False, True)]
        plans += [(*plan, Switch(two)) for plan in plans for two in steps if two > plan[0].step]
        for switches in plans:
            explorer.try_plan(meeting, Plan(first, switches))
    assert ends == tried


def end_of(world):
    """Return what became of the tasks, in the rows and in the index."""
    events = tuple((world.name_of(each.task_id), each.before, each.after) for each in world.history.events())
    state = index_state.read(get_index())
    waiting = frozenset((world.name_of(task_id), lane) for lane, page in state.addresses.items() for task_id in page)
    leased = frozenset(world.name_of(task_id) for task_id in state.leases)
    return frozenset((name, tuple(each for each in events if each[0] == name)) for name in "xy"), waiting, leased


@pytest.mark.parametrize(
    "twin",
    [
        "cancel",
        "late-grant",
        "release-stamp",
        "row-first",
        "lock-order",
        "acknowledge-first",
        "count",
        "border",
        "turned-over",
        "flow-lock",
        "step-fence",
        "signal-lock",
        "grant-stamp",
        "answers",
        "both-forget",
        "late-start",
        "condemned-again",
        "rows-generation",
    ],
)
def test_a_broken_twin_is_found(explorer, twin):
    """Without the guard a promise breaks, and the explorer says where; ``./dev explore --twins`` tries them all."""
    finding, schedules, _ = find_twin(explorer, twin)
    assert finding is not None, f"missed in {schedules} schedules"


def test_every_pair_that_shares_a_state_meets():
    pairs = {meeting.names for meeting in meetings()}
    assert ("claim", "cancel") in pairs
    assert ("claim", "claim") in pairs
    assert ("replay", "retry") in pairs
