"""Workflows in code and as JSON: what is wrong with them is said, and nothing is stored."""

import re
from datetime import timedelta

import pytest

from queue_app import Workflow, chain, group
from queue_app.core.records import NewTask
from queue_app.exceptions import InvalidTaskData, InvalidWorkflow
from queue_app.models import Task, TaskDependency, Workflow as Row, WorkflowNode
from queue_app.registry import type_of
from queue_app.workflows.store import NewFlow, NewNode, submit_workflow
from tests.support.engine import assert_index_agrees, rolled_back
from tests.workers.flow_tasks import charge, label, node, refund, total, undo

pytestmark = pytest.mark.both_ways


def new(name, after=(), *, compensate="", **options):
    options = {"task_type": type_of(node), "parameters": {"name": name}} | options
    return NewNode(name=name, task=NewTask(**options), after=after, compensate=compensate)


def test_a_graph_as_json_is_stored_with_names_conditions_and_results(engine):
    pay = new("pay", task_type=type_of(charge), parameters={"order": 1})
    city = {"address": {"$result": "pay", "path": ["address"]}}
    stick = new("stick", {"pay": "cancel"}, task_type=type_of(label), parameters=city)
    workflow_id, tasks = submit_workflow(NewFlow(name="ship", nodes=[stick, pay], user="ina"))
    assert [task.status for task in tasks.values()] == ["queued", "blocked"]
    assert Task.objects.get(pk=tasks["stick"].id).payload.parameters == {
        "address": {"$result": str(tasks["pay"].id), "path": ["address"]}
    }
    edge = TaskDependency.objects.get()
    assert (edge.before_id, edge.after_id, edge.condition) == (tasks["pay"].id, tasks["stick"].id, "cancel")
    assert Row.objects.get(pk=workflow_id).user == "ina"


@pytest.mark.parametrize(
    ("nodes", "message"),
    [
        ([new("a", ["c"]), new("b", ["a"]), new("c", ["b"])], "wait for one another: a -> c -> b -> a"),
        ([new("a", ["a"])], "wait for one another: a -> a"),
        ([new("pack"), new("ship", ["pakc"])], "'pakc', which is not in the workflow. Did you mean 'pack'"),
        ([new("a"), new("a")], "Two tasks are named 'a'"),
        ([new("a"), new("b", {"a": "soon"})], "'soon' is no condition"),
        ([new("a"), new("b", parameters={"name": {"$result": "a"}})], "does not wait for it; add it to `after`"),
        ([new("a", parameters={"name": {"$result": "b"}}), new("b")], "'b' is no task that this one waits for"),
        ([new("a", parameters={"name": {"$result": "a", "at": 1}})], "A reference is"),
        ([new("a", idempotency_key="k")], "cannot have an idempotency key"),
        ([new("a", parameters={"nam": 1})], "cannot be called with these arguments"),
        ([], "The workflow has no tasks"),
    ],
)
def test_what_is_wrong_with_a_graph_is_named(engine, nodes, message):
    with pytest.raises(InvalidTaskData, match=message):
        submit_workflow(NewFlow(name="wrong", nodes=nodes))
    assert not Task.objects.exists()
    assert not Row.objects.exists()


def test_too_many_tasks_or_dependencies_are_refused(engine, settings):
    settings.TASKQUEUE = {**settings.TASKQUEUE, "WORKFLOWS": {"MAX_TASKS": 3, "MAX_DEPENDENCIES": 2}}
    with pytest.raises(InvalidWorkflow, match="has 4 tasks; the limit is 3"):
        group([(node, "a")] * 4).enqueue()
    flow = Workflow("dense")
    first = flow.add(node, "a")
    flow.add(node, "c", after=[first, flow.add(node, "b", after=[first])])
    with pytest.raises(InvalidWorkflow, match="has 3 dependencies; the limit is 2"):
        flow.enqueue()


def refused(build) -> str:
    def run() -> None:
        flow = Workflow("refused")
        build(flow, Workflow("other"))
        flow.enqueue()

    with pytest.raises((InvalidWorkflow, InvalidTaskData)) as caught:
        run()
    assert not Row.objects.exists()
    return str(caught.value)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda flow, other: flow.add(node, "b", after=[other.add(node, "a")]), "node waits for a task that is not in"),
        (lambda flow, _: flow.add(total, flow.add(node, "a").result), "total takes the result of node, but does not"),
        (lambda flow, _: flow.add(node, "a", after="b"), "after must be a list of nodes"),
        (lambda flow, _: flow.add(node, "a", after=[7]), "it has 7"),
        (lambda flow, _: flow.add(print, "a"), "put @task above"),
        (lambda flow, _: flow.add(node.using(idempotency_key="k"), "a"), "has idempotency_key"),
        (lambda flow, _: flow.add(node), "missing a required argument: 'name'"),
        (lambda flow, _: flow.add(node, {"$result": "x"}), "is reserved in the arguments"),
        (lambda flow, _: flow.add(node, "a", compensate=label), "label.* cannot be called with these arguments"),
        (lambda flow, _: flow.add(group((node, "a")), "b"), "Give the arguments to the tasks"),
        (lambda flow, _: flow.map(node, over=[1]), "over=node.result"),
        (lambda flow, _: flow.add_many(node, []), "at least one call"),
        (lambda flow, _: flow.add(chain()), "at least one task"),
        (lambda flow, _: flow.add(group()), "at least one task"),
        (lambda _flow, _other: None, "has no tasks; add one before you enqueue it"),
        (lambda flow, _: flow.add(node.using(unique=True), "x"), "node has unique, which could name a task of"),
        (lambda _flow, _other: Workflow("x", on_failure="panic"), "must be one of hold, cancel, continue"),
        (lambda _flow, _other: group((node, "a")).enqueue("x", max_concurrent=0), "between 1 and"),
        (lambda _flow, _other: group((node, "a")).enqueue("x", deadline=timedelta(-1)), "must be in the future"),
        (lambda _flow, _other: group((node, "a")).enqueue("x", deadline=timedelta.max), "before the year 10000"),
        (lambda _flow, _other: group((node, "a")).enqueue("x\x00"), "control or invisible"),
    ],
)
def test_what_is_wrong_in_code_is_said(engine, build, message):
    found = refused(build)
    assert re.search(message, found), found


def test_a_workflow_is_enqueued_once(engine):
    flow = Workflow("once")
    flow.add(node, "a", compensate=undo)
    flow.enqueue()
    with pytest.raises(InvalidWorkflow, match="enqueued already"):
        flow.enqueue()


def test_what_is_added_after_the_enqueue_is_refused_and_not_lost(engine):
    flow, part = Workflow("stored"), Workflow("part")
    part.add(node, "a")
    flow.add(part)
    flow.enqueue()
    more = Workflow("more")
    more.add(node, "c")
    for late in (flow, part):
        for task in (node, chain((node, "b")), more):
            with pytest.raises(InvalidWorkflow, match="enqueued already, or part of another; add its tasks before"):
                late.add(task, *["b"] * (task is node))
    more.enqueue()
    assert Task.objects.count() == 2


@pytest.mark.parametrize(
    "use", [bool, "to {}".format, lambda result: f"{result['address']}", list, lambda result: "a" in result]
)
def test_a_result_that_does_not_exist_yet_is_no_text_no_truth_and_no_list(use):
    with pytest.raises(TypeError):
        use(Workflow("x").add(charge, 1).result)


def test_a_workflow_is_an_item_of_a_chain(engine):
    part = Workflow("part")
    part.add(node, "b")
    chain((node, "a"), part, total).enqueue()
    a, b, end = (Task.objects.get(pk=task_id) for task_id in Task.objects.order_by("id").values_list("id", flat=True))
    waits = {(edge.after_id, edge.before_id) for edge in TaskDependency.objects.all()}
    assert len(waits) == 2
    assert {a.status, b.status, end.status} == {"queued", "blocked"}


def test_a_task_of_a_graph_as_json_is_undone_by_the_one_that_it_names(engine):
    pay = new("pay", task_type=type_of(charge), parameters={"order": 1}, compensate=type_of(refund))
    stick = new("stick", ["pay"], compensate=type_of(undo))
    _, tasks = submit_workflow(NewFlow(name="saga", nodes=[pay, stick], user="ina"))
    undoes = WorkflowNode.objects.get(task_id=tasks["pay"].id).compensation
    assert (undoes["task_type"], undoes["user"]) == (type_of(refund), "ina")
    assert undoes["parameters"] == {"order": 1, "result": {"$result": str(tasks["pay"].id)}}
    assert WorkflowNode.objects.get(task_id=tasks["stick"].id).compensation["parameters"] == {"name": "stick"}


@pytest.mark.parametrize(("name", "code"), [("no.such", "unknown_task_type"), (type_of(total), "wrong_arguments")])
def test_a_task_that_cannot_undo_is_refused(engine, name, code):
    with pytest.raises(InvalidTaskData) as caught:
        submit_workflow(NewFlow(name="saga", nodes=[new("a", compensate=name)]))
    assert (caught.value.field, caught.value.code) == ("tasks[a].compensate", code)
    assert not Task.objects.exists()


def test_a_rollback_leaves_nothing(engine):
    with rolled_back():
        group((node, "a"), (node, "b")).then((charge, 1)).enqueue()
    assert not Row.objects.exists()
    assert not Task.objects.exists()
    assert_index_agrees()
