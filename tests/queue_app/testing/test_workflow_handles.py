"""What ``enqueue`` of a workflow returns, and what ``context.run`` waits for: with a worker, and with the kit."""

import pickle
import uuid
from datetime import timedelta

import pytest
from asgiref.sync import async_to_sync
from django.utils import timezone

import queue_app
from queue_app import Workflow, WorkflowHandle, chain, group, task
from queue_app.exceptions import TaskFailed, WorkflowNotFound
from queue_app.models import DeadLetter, Task, Workflow as Row
from queue_app.registry import type_of
from queue_app.services.lifecycle.actions import replay_open
from queue_app.services.upkeep.promote import make_due
from queue_app.testing import assert_workflow, drain
from tests.workers.flow_tasks import charge, failing, label, large, node, numbers, ran, square, total, undo
from tests.workers.stage import StillWorker


@task(takes_context=True, max_retries=0)
def price_of(context, order):
    """A durable task that runs a task, a workflow, a chain and a group, one after the other."""
    ran.append(("price_of", order))
    paid = context.run(charge, order)
    flow = Workflow("inner")
    first = flow.add(node, "first")
    flow.add(node, "second", first.result, after=[first])
    name = context.run(flow)
    sums = context.run(group((square, 2), (square, 3)).then(total))
    return [paid["id"], name, sums]


@task(takes_context=True, max_retries=0)
async def price_in_coroutine(context, order):
    return (await context.run(charge, order))["id"]


@task(takes_context=True, max_retries=0)
def catches(context, name):
    try:
        return context.run(node, name)
    except TaskFailed as error:
        return str(error)


@task(takes_context=True, max_retries=0)
def squares_of(context, count):
    """Runs a workflow whose last node is a map."""
    flow = Workflow("inner")
    flow.map(square, over=flow.add(numbers, count).result)
    return context.run(flow)


@task(takes_context=True, max_retries=0)
def measures(context, size):
    """Runs a group whose results are larger together than a payload may be."""
    texts = context.run(group((large, size) for _ in range(5)))
    context.sleep(0.05)
    return [len(text) for text in texts]


@task(takes_context=True, max_retries=0)
def goes_on_after(context, name):
    try:
        found = context.run(node, name)
    except TaskFailed:
        found = "nothing"
    context.step("remember", ran.append, ("remember", found))
    if failing.pop("later", 0):
        raise ValueError("later")
    return found


@task(takes_context=True, max_retries=0)
def passes(context, name):
    return context.run(node, name)


@pytest.fixture(params=["worker", "kit"])
def work(request, engine):
    """Return what lets everything run to its end."""
    ran.clear()
    failing.clear()
    if request.param == "kit":
        request.getfixturevalue("task_queue")
        yield lambda: drain(to_the_end=True)
    else:

        def run():
            for _ in range(30):
                StillWorker(concurrency=2).until_empty()
                Task.objects.filter(status="scheduled").update(run_after=timezone.now() - timedelta(seconds=1))
                make_due()

        yield run
    ran.clear()
    failing.clear()


def order(**options):
    flow = Workflow("order", **options)
    pay = flow.add(charge, 7, compensate=undo)
    stick = flow.add(label, after=[pay], address=pay.result["address"])
    both = flow.add_many(node, [(("a",), {}), (("b",), {})], after=[stick])
    return flow.enqueue(), pay, both


def test_the_handle_is_the_id_and_more(work):
    handle, pay, both = order()
    assert isinstance(handle, uuid.UUID)
    assert handle == handle.id == pickle.loads(pickle.dumps(handle)) == WorkflowHandle.of(str(handle))  # noqa: S301 - own
    assert type(handle.id) is uuid.UUID
    assert handle.status() == async_to_sync(handle.astatus)() == "running"
    assert handle.result(pay) is None
    handle.pause(by="ina", reason="stock")
    work()
    assert handle.result(pay) is None, "a pause starts nothing"
    handle.resume()
    work()
    assert handle.wait(5) == async_to_sync(handle.await_)(5) == "completed"
    assert handle.result(pay)["id"] == "pay-7"
    assert async_to_sync(handle.aresult)(both) == ["a", "b"]


def test_its_commands_cancel_retry_and_stop_undoing(work):
    handle, pay, _ = order()
    for _ in "12":
        handle.cancel(by="ina", reason="the customer called")
    assert handle.wait(5) == "cancelled"
    assert handle.retry(by="ina") == 4
    failing["a"] = 1
    work()
    assert handle.status() == "running"
    handle.cancel()
    assert handle.status() == "compensating"
    handle.stop_undoing(by="ina", reason="they keep it")
    assert (handle.wait(5), handle.gaps()) == ("failed", ["charge"])
    assert handle.result(pay)["id"] == "pay-7"
    with pytest.raises(WorkflowNotFound):
        WorkflowHandle.of(uuid.uuid4()).status()


def test_a_wait_times_out(work):
    flow = Workflow("never")
    flow.add(node.using(run_after=timezone.now() + timedelta(days=1)), "late")
    handle = flow.enqueue()
    handle.pause()
    with pytest.raises(TimeoutError, match="has not ended"):
        handle.wait(0)
    with pytest.raises(TimeoutError, match="has not ended"):
        async_to_sync(handle.await_)(0)


@pytest.mark.parametrize("run", [price_of, price_in_coroutine], ids=["function", "coroutine"])
def test_a_durable_task_runs_others_once_and_takes_their_results(work, run):
    flow = Workflow("outer")
    outer = flow.add(run, 3)
    handle = flow.enqueue()
    work()
    expected = ["pay-3", "second", 13] if run is price_of else "pay-3"
    assert handle.result(outer) == expected
    names = [name for name, _ in ran if name != "price_of"]
    once = ["charge", "first", "second", "square", "square", "total"]
    assert names == (once if run is price_of else once[:1]), "each ran once, in order"


def test_what_fails_raises_in_the_durable_task(work):
    failing["breaks"] = 1
    result = catches.enqueue("breaks")
    work()
    result.refresh()
    assert "ended without success: ValueError: breaks failed" in result.return_value


def test_the_result_of_a_workflow_that_ends_in_a_map_is_the_list(work):
    result = squares_of.enqueue(3)
    part = Workflow("part")
    part.map(square, over=part.add(numbers, 4).result)
    flow = Workflow("whole")
    inner = flow.add(part)
    outer = flow.add(total, inner.result, after=[inner])
    handle = flow.enqueue()
    work()
    result.refresh()
    assert result.return_value == [0, 1, 4]
    assert (handle.result(inner), handle.result(outer)) == ([0, 1, 4, 9], 14)


def test_results_larger_than_a_payload_come_together(work):
    result = measures.enqueue(240_000)
    work()
    result.refresh()
    assert result.return_value == 5 * [240_000]


def replay_nodes():
    """Replay the dead letters of ``node``."""
    replay_open(list(DeadLetter.objects.open().filter(task_type=type_of(node)).values_list("id", flat=True)), by="")


def test_what_failed_may_be_run_again_and_is_waited_for_again(work):
    failing["breaks"] = 1
    flow = Workflow("outer")
    outer = flow.add(passes, "breaks")
    last = flow.add(node, outer.result, after=[outer])
    handle = flow.enqueue()
    work()
    assert handle.status() == "running", "held"
    replay_nodes()
    assert handle.retry(by="ina") == 1
    work()
    assert (handle.status(), handle.result(last)) == ("completed", "breaks")


def test_a_failure_after_which_the_task_went_on_stays(work):
    failing["breaks"], failing["later"] = 1, 1
    flow = Workflow("outer")
    outer = flow.add(goes_on_after, "breaks")
    handle = flow.enqueue()
    work()
    replay_nodes()
    work()
    handle.retry(by="ina")
    work()
    assert (handle.status(), handle.result(outer)) == ("completed", "nothing")
    assert ran.count(("remember", "nothing")) == 1


def test_a_star_import_of_the_models_leaves_the_builder_alone():
    names: dict[str, object] = {}
    exec("from queue_app import *\nfrom queue_app.models import *", names)  # noqa: S102 - the statement in question
    assert names["Workflow"] is queue_app.Workflow is Workflow
    assert names["Task"] is Task
    assert Row is not Workflow
    assert chain
    assert assert_workflow
