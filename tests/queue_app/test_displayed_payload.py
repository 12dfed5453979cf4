"""Secrets of a task that are not in its row: results of other tasks, which flow into it."""

import uuid

import pytest
from django.utils import timezone

from queue_app.encryption.displayed import displayed_payload
from queue_app.models import TaskPayload, TaskResult, WorkflowNode
from tests.support.factories import TaskFactory

FLOW, OTHER = uuid.uuid4(), uuid.uuid4()


def made(workflow_id=FLOW, result=None, **parameters):
    status = "queued" if result is None else "completed"
    times = {} if result is None else {"attempt": 1, "started_at": timezone.now(), "finished_at": timezone.now()}
    task = TaskFactory(status=status, workflow_id=workflow_id, payload__parameters=parameters, **times)
    if result is not None:
        TaskResult.objects.create(task=task, value=result)
    return task


def secrets(task):
    return set(displayed_payload("a", TaskPayload.objects.get(pk=task.pk))[0])


@pytest.mark.parametrize("kind", ["$result", "$results", "$added_results"])
def test_results_under_secret_names_are_secrets(db, kind):
    found = made(result={"key": "canary-1", "other": 7})
    maker = made(result="none")
    WorkflowNode.objects.create(task=found, added_by=maker.pk)
    named = {"$result": str(found.pk), "$results": [str(found.pk)], "$added_results": str(maker.pk)}[kind]
    reader = made(secret={kind: named, "path": ["key"]}, note={kind: named, "path": ["other"]})
    assert secrets(reader) == {"canary-1"}
    assert secrets(made(note={kind: named, "path": ["key"]})) == set(), "no secret of this task"
    assert "canary-1" not in secrets(made(OTHER, secret={kind: named, "path": ["key"]})), "of another workflow"
    assert "canary-1" not in secrets(made(None, secret={kind: named, "path": ["key"]})), "of no workflow"


def test_a_result_that_is_missing_or_has_no_such_part_is_no_secret(db):
    found = made(result={"key": "canary-1"})
    lost = {"$result": str(found.pk), "path": ["gone"]}, {"$result": str(uuid.uuid4())}
    assert secrets(made(password=lost[0], token=lost[1], secret={"$result": str(found.pk), "path": ["key"]})) == {
        "canary-1"
    }
