"""The log of transitions: one line for each step of each task, and one report for each task that is lost."""

import json
import logging

import pytest
from django.db import transaction
from django.db.models.functions import Now

from queue_app import signals
from queue_app.core import trace
from queue_app.core.records import TaskRef
from queue_app.logs import JSONFormatter
from queue_app.models import Task
from queue_app.services.lifecycle.actions import cancel
from queue_app.services.lifecycle.finish import finish
from queue_app.services.upkeep.promote import make_due
from queue_app.telemetry import transition_log
from tests.support.engine import done, failed, index_away, put, put_many, rolled_back, take

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
pytestmark = pytest.mark.usefixtures("engine")


@pytest.fixture
def hand(scene):
    return scene.worker()


@pytest.fixture
def lines(settings, caplog):
    settings.TASKQUEUE = {**settings.TASKQUEUE, "EVENTS": {"LOG": True}}
    caplog.set_level(logging.INFO, "taskqueue")
    return lambda name="taskqueue.transitions": [
        json.loads(JSONFormatter().format(record)) for record in caplog.records if record.name == name
    ]


def test_the_life_of_a_task(hand, lines):
    with trace.use(PARENT):
        task_id = put()
    [task] = take(hand)
    finish([done(task)])
    first, second, third = lines()
    same = {"task_id": str(task_id), "task_type": "a", "queue": "default", "trace_id": trace.trace_id(PARENT)}
    for found, event, status, attempt in (
        (first, "Accepted", "queued", 0),
        (second, "Started", "executing", 1),
        (third, "Completed", "completed", 1),
    ):
        assert found | same == found
        assert (found["event"], found["status"], found["attempt"]) == (event, status, attempt)
    assert second["worker"] == third["worker"] == str(hand.id)
    assert second["wait_seconds"] >= 0
    assert third["run_seconds"] >= 0


def test_it_needs_neither_events_nor_redis(hand, lines, settings):
    events = {"LOG": True, "MAX_LENGTH": 0}
    settings.TASKQUEUE = {**settings.TASKQUEUE, "EVENTS": events, "METRICS": {"ENABLED": False}}
    with index_away(), transaction.atomic():
        put_many(2)
    assert [found["event"] for found in lines()] == ["Accepted", "Accepted"]


def test_what_is_rolled_back_is_not_logged(lines):
    with rolled_back():
        put_many(1)
    assert lines() == []


def test_waiting_tasks_that_are_cancelled(lines):
    cancel(put())
    assert [found["event"] for found in lines()] == ["Accepted", "Cancelled"]


def test_it_is_off_by_default(hand, caplog):
    caplog.set_level(logging.INFO, "taskqueue")
    put()
    assert not transition_log.enabled()
    assert [record for record in caplog.records if record.name == "taskqueue.transitions"] == []


def test_a_failure_is_reported_once_when_it_is_final(hand, lines, caplog):
    put(max_retries=1, retry_delay=0.01)
    for last in (False, True):
        [task] = _again(hand) if last else take(hand)
        outcome = failed(task, "broken\r\npipe")
        finish(
            [type(outcome)(task, outcome.started_at, outcome.finished_at, None, outcome.failure, error=KeyError("k"))]
        )
    levels = [record.levelno for record in caplog.records if record.name == "taskqueue"]
    assert levels == [logging.WARNING, logging.ERROR]
    warning, report = lines("taskqueue")
    assert "error" not in warning, "the exception is reported with the last failure only"
    assert warning["stack"] == "Traceback ...", "the text of the traceback, without an exception"
    assert (report["error"], report["attempt"], report["status"]) == ("builtins.KeyError", 2, "dead_letter")
    assert [(found["event"], found["error_"]) for found in lines() if found["event"] == "Failed"] == [
        ("Failed", "builtins.ValueError")
    ] * 2
    assert [found["event"] for found in lines()] == [
        "Accepted", "Started", "Failed", "Due", "Started", "Failed", "DeadLettered",
    ]  # fmt: skip


def _again(hand):
    """Let the retry be due, and take it."""
    Task.objects.update(run_after=Now())
    assert make_due() == 1
    return take(hand)


def test_tasks_that_killed_their_workers_are_reported(hand, lines):
    put()
    [task] = take(hand)
    signals.tasks_crash_looped.send(None, tasks=[task.ref])
    assert isinstance(task.ref, TaskRef)
    [found] = lines("taskqueue")
    assert (found["level"], found["task_id"]) == ("ERROR", str(task.id))
