"""Runs of events, and events of stream entries."""

import uuid

import pytest

from queue_app.core import trace
from queue_app.core.events import Event, EventFilter, EventName, Occasion, accepted, in_runs, is_entry_id, traced_each
from queue_app.core.states import Status

ONE, TWO, THREE = (uuid.UUID(int=number) for number in (1, 2, 3))
FIRST = accepted("app.a", "default", 1, "eve", Status.QUEUED)
OTHER = FIRST._replace(task_type="app.b")


def entry(**fields):
    known = {"event": "Started", "task_id": str(ONE), "queue": "q", "attempt": "2", "at": "1700000000000"}
    return Event.from_fields("5-1", known | fields)


def test_common_fields_of_new_tasks():
    assert Occasion("Accepted", "app.a", "default", "high", "eve", "0", "", "queued", ()) == FIRST


def test_adjacent_equal_events_form_a_run_in_order():
    again = Occasion(*FIRST)
    runs = in_runs([(FIRST, ONE), (again, TWO), (OTHER, THREE), (FIRST, ONE)])
    assert runs == [(FIRST, [ONE, TWO], ()), (OTHER, [THREE], ()), (FIRST, [ONE], ())]
    assert in_runs([]) == []


def test_an_entry_with_several_tasks_is_one_event_each():
    events = entry(task_id=f"{ONE} {TWO}", reason="timeout")
    assert [(event.id, event.name, event.task_id) for event in events] == [
        ("5-1", "Started", str(ONE)),
        ("5-1", "Started", str(TWO)),
    ]
    assert events[0].details == {"reason": "timeout"}
    assert (events[0].attempt, events[0].at, events[0].user) == (2, 1_700_000_000_000, "")


def test_tasks_of_several_traces_share_an_entry():
    """Many small workflows have a trace each; an entry for each event would cost a worker a tenth of its speed."""
    ids = [str(ONE), str(TWO), str(THREE)]
    parent = trace.of_task(THREE)
    for sent, wanted in (
        ([None, None, None], [ONE.hex, TWO.hex, THREE.hex]),
        ([parent, parent, parent], [THREE.hex] * 3),
        ([parent, None, trace.of_task(ONE)], [THREE.hex, TWO.hex, ONE.hex]),
    ):
        details = traced_each(FIRST, ids, sent).details
        fields = dict(zip(details[::2], details[1::2], strict=True))
        assert [event.trace_id for event in entry(task_id=" ".join(ids), **fields)] == wanted


@pytest.mark.parametrize("odd", ["", "x", "-1", "\N{ARABIC-INDIC DIGIT FIVE}", "9" * 5000])
def test_invalid_numbers_in_an_entry_are_ignored(odd):
    [event] = entry(attempt=odd, at=odd)
    assert (event.attempt, event.at) == (None, 0)


@pytest.mark.parametrize(
    ("wanted", "matches"),
    [
        ({}, True),
        ({"queue": "q", "task_id": ONE, "names": [EventName.STARTED]}, True),
        ({"queue": "other"}, False),
        ({"user": ""}, True),
        ({"user": "eve"}, False),
        ({"task_type": "app.a"}, False),
        ({"task_id": TWO}, False),
        ({"names": ["Failed"]}, False),
    ],
)
def test_filter(wanted, matches):
    assert EventFilter(**wanted).matches(entry()[0]) is matches


@pytest.mark.parametrize(("text", "good"), [("0", True), ("17-0", True), ("$", False), ("1-", False), ("1\n", False)])
def test_ids_of_entries(text, good):
    assert is_entry_id(text) is good
