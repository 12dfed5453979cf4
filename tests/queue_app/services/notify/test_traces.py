"""Every event, attempt and log line of a task has its trace id, whether the caller sent a trace or not."""

import logging

import pytest

from queue_app.core import trace
from queue_app.core.events import EventFilter
from queue_app.core.states import Status
from queue_app.index import get_index
from queue_app.models import Task
from queue_app.services.lifecycle.actions import cancel
from queue_app.services.lifecycle.claim import give_back
from queue_app.services.lifecycle.finish import finish
from queue_app.services.notify import events
from tests.support.engine import done, failed, put, put_many, take

pytestmark = pytest.mark.usefixtures("engine")

SENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def traces_of(task_id):
    get_index().flush()
    found = events.read(events.FROM_THE_BEGINNING, count=1000, only=EventFilter(task_id=task_id))[0]
    return [(event.name, event.trace_id) for event in found]


@pytest.mark.parametrize("sent", [None, SENT])
def test_from_the_enqueue_to_the_end(hand, sent, caplog, settings):
    settings.TASKQUEUE = {**settings.TASKQUEUE, "EVENTS": {"LOG": True}}
    caplog.set_level(logging.INFO, "taskqueue.transitions")
    with trace.use(sent):
        task_id = put(max_retries=0)
    wanted = trace.trace_id(sent) if sent else task_id.hex
    [claimed] = take(hand)
    give_back([claimed])
    [claimed] = take(hand)
    finish([failed(claimed)])
    assert traces_of(task_id) == [
        (name, wanted) for name in ("Accepted", "Started", "Requeued", "Started", "Failed", "DeadLettered")
    ]
    lines = [record.taskqueue["trace_id"] for record in caplog.records]
    assert len(lines) == 7, "six transitions, and the error for people"
    assert set(lines) == {wanted}


def test_a_cancelled_task_keeps_the_trace_of_its_caller():
    with trace.use(SENT):
        task_id = put()
    cancel(task_id)
    assert traces_of(task_id) == [(name, trace.trace_id(SENT)) for name in ("Accepted", "Cancelled")]


def test_tasks_without_a_trace_share_an_entry_and_differ_in_their_traces(hand):
    stored = put_many(3)
    finish([done(task) for task in take(hand, 3)])
    for task_id in stored:
        assert traces_of(task_id) == [(name, task_id.hex) for name in ("Accepted", "Started", "Completed")]
    assert Task.objects.filter(status=Status.COMPLETED).count() == 3
