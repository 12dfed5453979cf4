"""The states and their transitions."""

import pytest

from queue_app.core.states import PENDING, TERMINAL, TRANSITIONS, WAITING, Status, predicate
from queue_app.models.querysets import expand_statuses

ALLOWED = """
blocked     -> queued scheduled cancelled
scheduled   -> queued cancelled blocked
queued      -> executing cancelled expired scheduled blocked
executing   -> completed failed cancelled dead_letter scheduled queued blocked
dead_letter -> queued
completed   ->
failed      -> queued
cancelled   -> queued
expired     -> queued
"""


def test_the_table_is_the_contract():
    written = dict(line.split("->") for line in ALLOWED.strip().splitlines())
    assert {state.strip(): set(after.split()) for state, after in written.items()} == {
        state: set(after) for state, after in TRANSITIONS.items()
    }


def test_every_state_has_its_row():
    assert set(TRANSITIONS) == set(Status)


def test_groups():
    assert " ".join(sorted(WAITING)) == "blocked queued scheduled"
    assert " ".join(sorted(PENDING)) == "blocked executing queued scheduled"
    assert " ".join(sorted(TERMINAL)) == "cancelled completed dead_letter expired failed"


@pytest.mark.parametrize(
    ("names", "states"),
    [
        (["pending"], PENDING),
        (["pending", "failed"], PENDING | {Status.FAILED}),
        (["queued", "queued"], {Status.QUEUED}),
        ([], frozenset()),
    ],
)
def test_pending_is_a_composite(names, states):
    assert expand_statuses(names) == states


@pytest.mark.parametrize("name", ["Queued", "", "done", "ready"])
def test_other_names_are_refused(name):
    with pytest.raises(ValueError, match="is not a valid Status"):
        expand_statuses([name])


@pytest.mark.parametrize(("name", "state"), [("succeeded", Status.COMPLETED), ("running", Status.EXECUTING)])
def test_names_of_other_queues_are_accepted(name, state):
    assert expand_statuses([name]) == {state}


def test_sentences_about_a_state():
    assert {predicate(state) for state in Status} == {
        "is blocked", "is scheduled", "is queued", "is executing", "is completed", "has failed", "is cancelled",
        "is a dead letter", "has expired",
    }  # fmt: skip
