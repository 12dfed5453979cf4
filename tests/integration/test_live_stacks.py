"""Staff ask where a running task is, and its worker answers at once, between two heartbeats."""

import io

import pytest
from django.core.management import CommandError, call_command
from django.test import Client

from queue_app.core.states import Status
from queue_app.models import AuditEntry, TaskStack
from queue_app.registry import type_of
from queue_app.remote import tokens
from tests.integration.app import tasks
from tests.integration.test_remote_workers import NOWHERE
from tests.support.engine import put, row
from tests.support.factories import StaffFactory
from tests.support.waiting import until


def staff(*permissions):
    client = Client()
    client.force_login(StaffFactory(permissions=["view_task", *permissions]))
    return client


@pytest.fixture
def held(fleet, live_server, tmp_path):
    """Return a function that starts a worker with a task that waits: its id."""

    def begin(*arguments, function=tasks.hold, **env):
        log = str(tmp_path / "log")
        args = [log] if function is tasks.hold_async else [log, "a", str(tmp_path / "gate")]
        task_id = put(type_of(function), args=args)
        if "--server" in arguments:
            env = {"TASKQUEUE_TOKEN": tokens.create("far")[1], **NOWHERE}
            arguments = ("--server", live_server.url)
        fleet.worker(*arguments, **env)
        until((tmp_path / "log").exists, "the begin of the task")
        return task_id

    return begin


def page_of(client, task_id):
    return client.get(f"/admin/queue_app/task/{task_id}/change/").content.decode()


@pytest.mark.both_ways
@pytest.mark.parametrize("pool", ["threads", "processes", "async"])
def test_the_page_of_a_task_shows_where_it_is(held, index, index_way, pool):
    function = tasks.hold_async if pool == "async" else tasks.hold
    task_id = held("--pool", pool, function=function, TASKQUEUE__INDEX=index_way)
    client = staff("view_stack")
    assert "Show where it is" in page_of(client, task_id)
    client.post(f"/admin/queue_app/task/{task_id}/stack/", {"reason": "it takes long"})
    until(lambda: "tests/integration/app/tasks.py:" in page_of(client, task_id), "the answer of the worker", 20)
    text = TaskStack.objects.get(pk=task_id).text
    assert text.splitlines()[0].endswith(function.func.__name__), text
    entry = AuditEntry.objects.get(action="task.stack")
    assert (entry.target_id, entry.reason) == (str(task_id), "it takes long")
    other = staff("view_payload")
    assert "tests/integration/app/tasks.py" not in page_of(other, task_id)
    assert "tests/integration" not in other.get(f"/admin/queue_app/task/{task_id}/live/").content.decode()
    assert other.post(f"/admin/queue_app/task/{task_id}/stack/").status_code == 403


def test_a_remote_worker_answers_and_the_command_prints_it(held):
    task_id = held("--server")
    out = io.StringIO()
    call_command("taskqueue", "stack", str(task_id), "--as", "ops", "--reason", "slow", stdout=out)
    assert out.getvalue().startswith("tests/integration/app/tasks.py:")
    assert "until(Path(gate).exists" in out.getvalue(), "the line of the source"
    assert AuditEntry.objects.get(action="stack").by == "ops"


def test_what_cannot_be_shown_is_said(engine):
    waiting = put(type_of(tasks.add), args=[1, 2])
    with pytest.raises(CommandError, match="Only a running task has a stack; this one is queued"):
        call_command("taskqueue", "stack", str(waiting))
    assert row(waiting).status == Status.QUEUED
