"""The functions for coroutines do not block the event loop."""

import asyncio

import pytest
from asgiref.sync import sync_to_async
from django.core.exceptions import SynchronousOnlyOperation
from django.db import connections
from django.tasks import default_task_backend, task
from django.tasks.base import TaskResultStatus
from django.test import AsyncClient

from queue_app import services
from queue_app.core.priorities import Band
from queue_app.core.records import NewTask
from queue_app.core.states import Status
from queue_app.models import Task
from tests.support.engine import assert_index_agrees, new

pytestmark = pytest.mark.usefixtures("engine")


@task
def add(a: int, b: int) -> int:
    return a + b


def on_a_loop(main):
    """Run a coroutine function on a loop in debug mode; Django refuses what would block it."""

    async def run():
        try:
            return await main()
        finally:
            await sync_to_async(connections.close_all)()

    return asyncio.run(run(), debug=True)


def test_django_refuses_blocking_calls():
    async def blocking():
        services.enqueue(new())

    with pytest.raises(SynchronousOnlyOperation):
        on_a_loop(blocking)


def test_tasks_from_a_coroutine():
    async def main():
        result = await add.aenqueue(1, 2)
        many = await default_task_backend.aenqueue_many(add, [((n, n), {}) for n in range(3)])
        again = await default_task_backend.aget_result(result.id)
        await result.arefresh()
        return again, result, many

    again, result, many = on_a_loop(main)
    assert (again.status, again.args, result.status) == (TaskResultStatus.READY, [1, 2], TaskResultStatus.READY)
    assert [item.args for item in many] == [[0, 0], [1, 1], [2, 2]]
    assert Task.objects.count() == 4
    assert_index_agrees()


def test_services_from_a_coroutine():
    async def main():
        first = await services.aenqueue(new())
        more = await services.aenqueue_many([NewTask(task_type="shop.tasks.pack", queue="parcels")] * 3)
        await services.areprioritise(more[0].id, Band.HIGH)
        paused = (await services.apause("parcels", by="test")).paused
        resumed = (await services.aresume("parcels")).paused
        states = [await services.acancel(first.id), *(await services.acancel_many([more[1].id])).values()]
        return first, more, states, paused, resumed

    first, more, states, paused, resumed = on_a_loop(main)
    assert states == [Status.CANCELLED] * 2
    assert (paused, resumed) == (True, False)
    assert Task.objects.get(pk=more[0].id).band is Band.HIGH
    assert Task.objects.get(pk=first.id).status == Status.CANCELLED
    assert_index_agrees()


def test_the_api_under_asgi(django_user_model):
    """Views run in a thread; the middleware and the loop do not block each other."""
    user = django_user_model.objects.create_superuser("ada", password="x")

    async def main():
        client = AsyncClient()
        await client.aforce_login(user)
        body = {"task_type": f"{__name__}.add", "parameters": {"a": 1, "b": 2}}
        headers = {"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}
        made = await client.post("/api/v1/tasks", body, content_type="application/json", headers=headers)
        task_id = made.json()["task_id"]
        return (
            made.status_code,
            (await client.get(f"/api/v1/tasks/{task_id}")).json()["status"],
            (await client.delete(f"/api/v1/tasks/{task_id}")).status_code,
            task_id,
        )

    created, state, deleted, task_id = on_a_loop(main)
    assert (created, state, deleted) == (201, "queued", 200)
    row = Task.objects.get(pk=task_id)
    assert row.status == Status.CANCELLED
    assert row.payload.trace.startswith("00-0af7651916cd43dd8448eb211c80319c-"), "the caller's trace goes on"
