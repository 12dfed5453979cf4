"""Events of one workflow as a stream."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import pytest
from asgiref.sync import async_to_sync, sync_to_async

from queue_app import Workflow, chain
from queue_app.api import waiting
from queue_app.api.views import events as view
from queue_app.core.events import EventFilter
from queue_app.index import get_index
from queue_app.models import Task
from queue_app.workflows.steer import cancel_workflow, pause_workflow
from queue_app.workflows.views import OneWorkflow, WorkflowEventView
from tests.queue_app.api.test_waiting import read
from tests.workers import chores


@pytest.fixture
def two(transactional_db) -> list:
    """Two workflows whose events are published; return their ids."""
    found = [chain((chores.echo, number), chores.echo).enqueue(f"order {number}", user="alice") for number in (1, 2)]
    get_index().flush()
    return found


def test_only_the_events_of_its_tasks_and_its_own_changes_arrive(two, override):
    override(view, KEY_SECONDS=0.1)
    mine, other = two

    def steer() -> None:
        cancel_workflow(other)
        pause_workflow(mine, by="ina", reason="the bank is down")
        cancel_workflow(mine)
        get_index().flush()

    async def listen() -> bytes:
        heard, steered = b"", False
        stream = view.stream(EventFilter(), "0-0", None, waiting.streams.take(1), OneWorkflow(mine))
        async for part in stream:
            heard += part
            if b'"state": "running"' in heard and not steered:
                steered = True
                await sync_to_async(steer, thread_sensitive=True)()
            if b'"state": "cancelled"' in heard and heard.count(b"event: Cancelled") == 2:
                break
        await stream.aclose()
        return heard

    async def in_time() -> bytes:
        return await asyncio.wait_for(listen(), 60)

    found = read(async_to_sync(in_time)())
    own = {str(pk) for pk in Task.objects.filter(workflow_id=mine).values_list("pk", flat=True)}
    about_tasks = [event for event in found if event["event"] != "WorkflowChanged"]
    assert {event["data"]["task_id"] for event in about_tasks} == own
    assert [event["event"] for event in about_tasks] == ["Accepted"] * 2 + ["Cancelled"] * 2
    whole = [event["data"] for event in found if event["event"] == "WorkflowChanged"]
    assert [each["state"] for each in (whole[0], whole[-1])] == ["running", "cancelled"]
    assert whole[-1]["finished_at"]
    assert {each["workflow_id"] for each in whole} == {str(mine)}
    assert waiting.streams.taken == 0


def test_it_needs_asgi_and_a_workflow_that_the_caller_may_see(alice, bob, two):
    url = f"/api/v1/workflows/{two[0]}/events"
    assert alice.get(url).data["code"] == "asgi_required"
    assert bob.get(url).status_code == 404
    assert alice.get(f"{url}?colour=red").data["code"] == "unknown_parameter"


def test_users_hear_of_their_own_tasks_only(alice, two):
    request = SimpleNamespace(method="GET", query_params={}, user=alice.user, headers={})
    wanted, _ = WorkflowEventView()._wanted(request)
    assert wanted.user == "alice"


def test_all_its_tasks_have_one_trace(two):
    """Without a trace of the caller the workflow begins one."""
    flow = Workflow("other")
    flow.add(chores.echo, 1)
    flow.enqueue()
    for workflow_id in two:
        found = Task.objects.filter(workflow_id=workflow_id)
        assert {task.payload.trace[3:35] for task in found} == {workflow_id.hex}
