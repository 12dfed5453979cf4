"""A bounded part of the exploration, drawn anew for each run; ``./dev explore`` tries all of it."""

import logging
import secrets

import pytest

from tests.explorer.controller import Fault, Plan, Switch
from tests.explorer.gates import DIE
from tests.explorer.instrument import instrument
from tests.explorer.search import Explorer, Meeting, meetings, sample, search
from tests.explorer.transitions import TRANSITIONS
from tests.explorer.twins import find_twin

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("rows")]
SECONDS = 30.0


@pytest.fixture
def explorer():
    logging.disable(logging.CRITICAL)  # deaths and lost connections are what it makes
    try:
        with instrument() as (world, control):
            yield Explorer(world, control)
    finally:
        logging.disable(logging.NOTSET)


def test_a_sample_of_all_meetings_breaks_no_promise(explorer):
    seed = secrets.randbelow(10**8)
    print(f"seed {seed}: ./dev explore --seed {seed} goes the same way")
    tally = search(explorer, sample(seed), seconds=SECONDS)
    assert tally.schedules > 10
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


@pytest.mark.parametrize("twin", ["cancel", "late-grant", "release-stamp", "row-first", "lock-order"])
def test_a_broken_twin_is_found(explorer, twin):
    """Without the guard a promise breaks, and the explorer says where; ``./dev explore --twins`` tries them all."""
    finding, schedules, _ = find_twin(explorer, twin)
    assert finding is not None, f"missed in {schedules} schedules"


def test_every_pair_that_shares_a_state_meets():
    pairs = {meeting.names for meeting in meetings()}
    assert ("claim", "cancel") in pairs
    assert ("claim", "claim") in pairs
    assert ("replay", "retry") in pairs
