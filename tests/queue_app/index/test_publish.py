"""publish.lua: the fields, order and cap of events; a failing stream fails nothing else."""

import time
import uuid

import pytest

from queue_app.core.events import Run, accepted
from queue_app.core.ids import uuid7
from queue_app.core.limits import lane_name
from queue_app.core.records import Entry
from queue_app.core.states import Status
from queue_app.index import Index, notifier
from queue_app.index.notifier import IDS_PER_ENTRY, split
from tests.support.index_state import client_of

FIELDS = ["event", "task_id", "task_type", "queue", "priority", "user", "attempt", "worker", "status", "at"]
LANE = lane_name("default", "app.a", ())


@pytest.fixture
def index(settings):
    return Index("default", settings.TASKQUEUE["KEY_PREFIX"])


def occasion(**changes):
    return accepted("app.a", "default", 2, "eve", Status.QUEUED)._replace(**changes)


def run(count=1, **changes):
    return Run(occasion(**changes), [uuid7() for _ in range(count)])


def entries(index):
    index.flush()
    return client_of(index).xrange(index.keys.events)


def decoded(fields):
    return {name.decode(): value.decode() for name, value in fields.items()}


def test_the_fields_of_an_entry(index):
    published = run(details=("reason", "crash_loop"), user="Zoë")
    before = index.now() // 1000
    assert index.publish([published]) == 1
    [(entry_id, fields)] = entries(index)
    fields = decoded(fields)
    assert list(fields) == [*FIELDS, "reason"]
    assert before <= int(fields.pop("at")) <= index.now() // 1000
    assert list(fields.values()) == [
        *("Accepted", str(published.task_ids[0]), "app.a", "default", "normal", "Zoë", "0", "", "queued", "crash_loop")
    ]
    assert index.last_event_id() == entry_id.decode()


def test_a_run_is_cut_into_entries_of_a_few_tasks(index):
    published = run(2 * IDS_PER_ENTRY + 1)
    assert index.publish([published]) == 3
    found = [uuid.UUID(text) for _, fields in entries(index) for text in decoded(fields)["task_id"].split(" ")]
    assert found == published.task_ids


def test_a_call_publishes_at_most_500_tasks():
    parts = list(split([run(300), run(900), run(1, user="bob")], 500))
    assert [[len(some.task_ids) for some in part] for part in parts] == [[500], [500], [200, 1]]


def test_adjacent_equal_events_are_joined_and_the_given_lists_stay_unchanged():
    one, two = run(2), run(3)
    [[joined]] = split([one, two], 500)
    assert joined.task_ids == one.task_ids + two.task_ids
    assert len(one.task_ids) == 2


def test_the_stream_is_capped(index, settings):
    settings.TASKQUEUE = settings.TASKQUEUE | {"EVENTS": {"MAX_LENGTH": 200}}
    for _ in range(10):
        index.publish([run(1, user=str(number)) for number in range(100)])
    assert 200 <= client_of(index).xlen(index.keys.events) <= 400  # trimmed by whole nodes


def test_an_event_stands_before_the_entry_that_lets_the_task_start(index, monkeypatch):
    monkeypatch.setattr(notifier, "GATHER_SECONDS", 1000.0)
    index._notifier._sent_at = time.monotonic()
    sent = []
    plain = index._notifier._pipeline.send
    monkeypatch.setattr(index._notifier._pipeline, "send", lambda calls: sent.append(calls) or plain(calls))
    published = run(2)
    index.notify([Entry(LANE, 2e13, task_id) for task_id in published.task_ids], [published])
    index.flush()
    assert [call.script for call in sent[0]] == [index._scripts["publish"], index._scripts["push"]]
    assert index.depth("default").total == 2


def test_events_alone_are_not_waited_for_by_the_next_call(index, monkeypatch):
    monkeypatch.setattr(notifier, "GATHER_SECONDS", 1000.0)
    index._notifier._sent_at = time.monotonic()
    index.notify((), [run()])
    assert index.queues() == []
    index.wake_idle()
    assert index._notifier._count == 1
    assert len(entries(index)) == 1


def test_events_wait_for_entries_to_go_with_up_to_a_limit(index, monkeypatch):
    monkeypatch.setattr(notifier, "GATHER_SECONDS", 0.005)
    notifier_of_index = index._notifier
    notifier_of_index._start_thread = lambda: None
    notifier_of_index._sent_at = -1000.0
    index.notify((), [run()])
    assert notifier_of_index._count == 1
    index.notify((), [run(notifier.MAX_EVENTS)])
    assert notifier_of_index._count == 0


def test_a_reader_sees_the_events_of_its_process(index, monkeypatch):
    monkeypatch.setattr(notifier, "GATHER_SECONDS", 1000.0)
    index.notify((), [run()])
    assert index.last_event_id() != "0-0"
    index.notify((), [run()])
    assert len(index.read_events("0-0", count=10)) == 2


def test_a_stream_that_cannot_be_written_fails_nothing(index):
    client_of(index).set(index.keys.events, "not a stream")
    assert index.publish([run()]) == 0
    task_id = uuid7()
    index.notify([Entry(LANE, 2e13, task_id)], [run()])
    index.flush()
    assert index.depth("default").total == 1


def test_a_server_that_forgot_its_scripts_gets_both_again(index):
    index.publish([run()])
    client_of(index).script_flush()
    index.notify([Entry(LANE, 2e13, uuid7())], [run()])
    index.flush()
    assert index.depth("default").total == 1
    assert len(entries(index)) == 2


def test_a_rebuild_leaves_the_streams_alone(index):
    index.publish([run()])
    client_of(index).xadd(index.keys.requests, {"event": "ExecutionRequested"})
    client_of(index).xadd(index.keys.poison, {"error": "required"})
    index.begin_generation(1)
    assert len(entries(index)) == 1
    assert client_of(index).exists(index.keys.requests, index.keys.poison) == 2


def test_reading_waits_for_the_first_event(index):
    assert index.read_events("0-0", count=10) == []
    assert index.read_events("0-0", count=10, block_ms=1) == []
    index.publish([run(2)])
    assert [event.name for event in index.read_events("0-0", count=10, block_ms=1)] == ["Accepted"] * 2
    assert index.last_event_id() != "0-0"
