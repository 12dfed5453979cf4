"""Spans from the caller to the task, recorded by OpenTelemetry's exporter in memory."""

import asyncio
import logging
import uuid
from contextlib import nullcontext

import pytest
from opentelemetry import trace as api

from queue_app import Workflow, task
from queue_app.core import trace
from queue_app.exceptions import Snooze
from queue_app.models import Task, TaskPayload, Workflow as Row
from queue_app.registry import type_of
from queue_app.services.enqueue.store import enqueue_many, submit
from queue_app.services.lifecycle.claim import claim
from queue_app.telemetry import tracing
from queue_app.workers.context import ClaimedAttempt
from queue_app.workers.executor import Executor
from queue_app.workflows.steer import cancel_workflow
from tests.support.engine import new, put
from tests.workers.flow_tasks import failing, node, ran, undo
from tests.workers.stage import StillWorker

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
pytestmark = pytest.mark.usefixtures("engine")


@task
def nested() -> str:
    """Make a span, and enqueue another task."""
    with tracing._tracer().start_as_current_span("inner"):
        breaks.enqueue()
    logging.getLogger("shop").warning("traced")
    return trace.trace_id(trace.current.get())


@task
async def awaited() -> str:
    """Return the trace of this task."""
    await asyncio.sleep(0)
    return trace.trace_id(trace.current.get())


@task
def breaks() -> None:
    """Fail."""
    raise LookupError("gone")


@task
def waits() -> None:
    """Be put off."""
    raise Snooze(60)


@pytest.fixture
def spans(exporter):
    """Return a function that returns the first finished span of each name."""
    return lambda: {span.name: span for span in reversed(exporter.get_finished_spans())}


@pytest.fixture
def run(scene):
    """Claim one task and run it as a worker does."""

    def run_one(kind):
        hand = scene.worker(type_of(kind))
        [claimed] = claim(hand.profile, hand.id, 1)
        held, executor = ClaimedAttempt(claimed, 0.0), Executor(hand.id)
        return asyncio.run(executor.arun(held)) if kind is awaited else executor.run(held)

    return run_one


def ids(span):
    return f"{span.context.trace_id:032x}", f"{span.context.span_id:016x}"


def test_one_trace_from_the_caller_to_what_the_task_enqueues(spans, run):
    with trace.use(PARENT):
        task_id = put(type_of(nested))
    outcome = run(nested)
    found = spans()
    sent, wait, ran, inner = (found[name] for name in ("enqueue default", "wait default", "process default", "inner"))
    assert {ids(span)[0] for span in (sent, wait, ran, inner)} == {trace.trace_id(PARENT)}
    assert outcome.result == f'"{trace.trace_id(PARENT)}"'
    assert f"{sent.parent.span_id:016x}" == PARENT[36:52]
    assert wait.parent.span_id == ran.parent.span_id == sent.context.span_id
    assert inner.parent.span_id == ran.context.span_id
    assert (sent.kind, ran.kind) == (api.SpanKind.PRODUCER, api.SpanKind.CONSUMER)
    assert wait.start_time <= wait.end_time
    assert sent.attributes == {
        "messaging.system": "taskqueue",
        "messaging.operation.name": "enqueue",
        "messaging.operation.type": "send",
        "messaging.destination.name": "default",
        "messaging.message.id": str(task_id),
        "taskqueue.task_type": type_of(nested),
    }
    assert ran.attributes["messaging.message.id"] == str(task_id)
    assert ran.attributes["messaging.operation.type"] == "process"
    assert (ran.attributes["taskqueue.attempt"], ran.status.status_code) == (1, api.StatusCode.UNSET)
    carried = TaskPayload.objects.order_by("task_id").values_list("trace", flat=True)
    assert trace.trace_id(carried[1]) == trace.trace_id(PARENT), "what the task enqueued belongs to the trace too"
    assert trace.current.get() is None


@pytest.mark.parametrize(("kind", "failed"), [(breaks, True), (waits, False)])
def test_an_error_is_recorded_and_a_snooze_is_not_an_error(spans, run, kind, failed):
    put(type_of(kind))
    run(kind)
    ran = spans()["process default"]
    assert (ran.status.status_code is api.StatusCode.ERROR) == failed
    assert ran.attributes.get("error.type") == ("builtins.LookupError" if failed else None)
    assert [event.name for event in ran.events] == (["exception"] if failed else [])
    assert ran.attributes.get("taskqueue.put_off") == (None if failed else "Snooze")


def test_coroutines_and_tasks_of_enqueuers_without_traces(spans, run, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(tracing, "_tracer", lambda: None)
        put(type_of(awaited))
    outcome = run(awaited)
    wait, ran = spans()["wait default"], spans()["process default"]
    assert ids(wait)[0] == ids(ran)[0] == outcome.result.strip('"') == outcome.task.id.hex, "the task begins the trace"


def test_the_answer_to_a_submission_names_the_trace_of_its_span(spans):
    """Also if the caller has none, so that the span begins the trace."""
    stored = submit(new(type_of(waits)))
    assert stored.trace_id == f"{spans()['enqueue default'].context.trace_id:032x}"
    assert trace.trace_id(TaskPayload.objects.get(pk=stored.id).trace) == stored.trace_id


def test_many_tasks_are_one_span(spans):
    enqueue_many(new(queue=f"q{number % 2}") for number in range(3))
    sent = spans()["enqueue"]
    assert sent.attributes["messaging.batch.message_count"] == 3
    assert set(TaskPayload.objects.values_list("trace", flat=True)) == {"00-{}-{}-01".format(*ids(sent))}


def test_a_failing_tracer_stops_no_task(run, monkeypatch, caplog):
    monkeypatch.setattr(tracing, "_tracer", object)
    put(type_of(breaks))
    assert run(breaks).failure.exception_class == "builtins.LookupError"
    assert "no spans for" in caplog.text


def test_without_a_provider_there_are_no_spans():
    with tracing.attempt(None) as span, tracing.enqueueing([uuid.uuid4()]) as sent:
        assert (span, sent) == (None, None)


@pytest.mark.parametrize("stored", [True, False], ids=["with the trace of its caller", "with its own"])
def test_a_compensation_belongs_to_the_workflow_and_not_to_the_request_that_cancels_it(spans, stored):
    tracer, worker = tracing._tracer(), StillWorker(concurrency=1)
    flow = Workflow("order")
    paid = flow.add(node, "paid", compensate=undo)
    flow.add(node, "last", after=[paid])
    failing["last"] = 1
    with tracer.start_as_current_span("POST /orders") if stored else nullcontext():
        flow.enqueue()
    worker.until_empty()
    with tracer.start_as_current_span("POST /admin/cancel") as request:
        cancel_workflow(flow.id, reason="no hope")
        assert api.get_current_span() is request
    worker.until_empty()
    assert Row.objects.get(pk=flow.id).state == "compensated"
    [undone] = Task.objects.filter(task_type=type_of(undo)).select_related("payload")
    others = TaskPayload.objects.exclude(task_id=undone.id).values_list("trace", flat=True)
    assert {trace.trace_id(each) for each in others} == {trace.trace_id(undone.payload.trace)}
    placed = spans()["POST /orders" if stored else "POST /admin/cancel"]
    assert (trace.trace_id(undone.payload.trace) == ids(placed)[0]) is stored
    ran.clear()
