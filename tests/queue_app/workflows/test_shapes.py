"""Workflows of odd shapes, in odd places and moments: each goes on, or is refused with a sentence."""

import re
from contextlib import nullcontext
from datetime import timedelta

import pytest
from django.db import OperationalError, transaction
from django.utils import timezone

from queue_app import Workflow, signal, task
from queue_app.core.graph import Graph
from queue_app.exceptions import InvalidTaskData, InvalidTransition, InvalidWorkflow
from queue_app.models import DeadLetter, Queue, Task, TaskDependency, TaskPayload, Workflow as Row
from queue_app.services import pause, resume
from queue_app.services.enqueue.admission import expire_stale
from queue_app.services.enqueue.validate import check_task
from queue_app.services.lifecycle.actions import cancel, cancel_many, discard, replay, retry
from queue_app.services.lifecycle.finish import finish
from queue_app.services.upkeep.maintenance import purge
from queue_app.services.upkeep.promote import make_due
from queue_app.sql import workflow_advance
from queue_app.sql.database import fetch_all
from queue_app.testing import assert_workflow
from queue_app.workflows.read import WorkflowUpkeep
from queue_app.workflows.steer import cancel_workflow, retry_workflow, stop_undoing
from queue_app.workflows.store import add_nodes
from tests.support.engine import at_once, done, failed, new, open_transaction, row, take
from tests.workers.flow_tasks import charge, failing, label, node, ran, undo
from tests.workers.stage import StillWorker

pytestmark = pytest.mark.both_ways

LONG_AGO = timezone.now() - timedelta(days=400)


@task(max_retries=0)
def nothing(*_given: object) -> None:
    """Return None."""


@pytest.fixture(autouse=True)
def clean(engine):
    ran.clear()
    failing.clear()
    yield
    ran.clear()
    failing.clear()


def work() -> list[str]:
    StillWorker(concurrency=1).until_empty()
    assert WorkflowUpkeep().run_once() == 0, "nothing was forgotten"
    names = [name for name, _ in ran]
    ran.clear()
    return names


def two(first_task=node, second_task=node, **options):
    """Enqueue ``first``, which can be undone, and ``second``, which waits for it."""
    flow = Workflow("two", **options)
    first = flow.add_call(first_task, ("first",), name="first", compensate=undo)
    flow.add_call(second_task, ("second",), name="second", after=[first])
    flow.enqueue()
    return flow, first


@pytest.mark.parametrize(
    ("maker", "path", "sentence"),
    [
        (nothing, ("x",), "has no 'x'; it is null"),
        (charge, ("address", "town"), r"at \['address'\] has no 'town'; it has the keys 'city'"),
        (charge, (3,), "has no 3; it has the keys"),
    ],
)
def test_a_part_that_a_result_lacks_fails_the_task_with_that_sentence(maker, path, sentence):
    flow = Workflow("missing")
    before = flow.add(maker, 1)
    part = before.result
    for key in path:
        part = part[key]
    flow.add(node, "end", part, after=[before])
    flow.enqueue()
    work()
    failure = Task.objects.get(workflow_id=flow.id, status="failed")
    assert failure.attempt == 1
    assert re.search(sentence, failure.attempts.get().message)


def test_a_result_of_none_is_handed_on():
    flow = Workflow("none")
    before = flow.add(nothing)
    flow.add(node, "end", before.result, after=[before])
    flow.enqueue()
    work()
    assert_workflow(flow, "completed")


def test_a_task_with_a_start_time_waits_for_both():
    flow, _ = two(second_task=node.using(run_after=timezone.now() + timedelta(hours=1)))
    assert work() == ["first"]
    assert_workflow(flow, "running", {"second": "scheduled"})
    Task.objects.filter(status="scheduled").update(run_after=LONG_AGO)
    make_due()
    assert work() == ["second"]
    assert_workflow(flow, "completed")


def test_a_paused_queue_delays_its_tasks_and_holds_nothing():
    Queue.objects.create(name="slow")
    pause("slow", by="ina")
    flow, _ = two(second_task=node.using(queue_name="slow"))
    assert work() == ["first"]
    assert_workflow(flow, "running", {"second": "queued"})
    assert Row.objects.get().held_at is None
    resume("slow")
    assert work() == ["second"]


def test_an_edited_replay_keeps_the_references():
    flow = Workflow("edited")
    pay = flow.add(charge, 1)
    flow.add(label, after=[pay], address=pay.result["adress"])
    flow.enqueue()
    work()
    stuck = Task.objects.get(status="failed")
    payload = TaskPayload.objects.get(pk=stuck.pk)
    payload.parameters["address"]["path"] = ["address"]
    payload.save(update_fields=["parameters"])
    retry(stuck.pk, by="ina")
    assert work() == ["label"]
    assert_workflow(flow, "completed")


def test_a_dead_letter_is_edited_and_replayed_with_its_references():
    failing["end"] = 1
    flow = Workflow("edited letter")
    pay = flow.add(charge, 1)
    end = flow.add(node, "end", pay.result["address"], after=[pay])
    flow.enqueue()
    work()
    replay(DeadLetter.objects.get().id, by="ina", parameters={})
    work()
    assert row(end.id).status == "completed"
    assert_workflow(flow, "completed")


def test_a_discard_cancels_only_what_needed_the_task():
    failing["left"] = 1
    flow = Workflow("half")
    left = flow.add(node, "left")
    flow.add_call(node, ("needs",), name="needs", after=[left])
    flow.add_call(node, ("tidies",), name="tidies", after=[left.even_if_failed])
    flow.enqueue()
    assert work() == ["left", "tidies"]
    discard(DeadLetter.objects.get().id, by="ina")
    assert_workflow(flow, "failed", {"needs": "cancelled", "tidies": "completed"})


def test_undoing_is_stopped_by_its_own_command_also_while_a_compensation_runs(engine):
    flow = Workflow("undone", on_failure="cancel")
    first = flow.add_call(node, ("first",), name="first", compensate=undo)
    second = flow.add_call(node, ("second",), name="second", after=[first], compensate=undo)
    flow.add(node, "third", after=[second])
    flow.enqueue()
    hand = engine.worker("tests.workers.flow_tasks.node tests.workers.flow_tasks.undo")
    for end in (done, done, failed):
        finish([end(task) for task in take(hand)])
    (undoing,) = take(hand)
    assert_workflow(flow, "compensating", {"undo second": "executing", "undo first": "blocked"})
    assert cancel_workflow(flow.id, by="ina", reason="enough") == 0
    with pytest.raises(InvalidTransition, match="it undoes another task; stop undoing its workflow instead"):
        cancel(undoing.id)
    assert cancel_many(list(Task.objects.values_list("id", flat=True))) == {}
    assert_workflow(flow, "compensating", {"undo second": "executing", "undo first": "blocked"})
    with pytest.raises(InvalidTaskData, match="Give a reason"):
        stop_undoing(flow.id, by="ina", reason="")
    assert stop_undoing(flow.id, by="ina", reason="the wrong customer") == 2
    assert_workflow(flow, "compensating", {"undo second": "executing", "undo first": "cancelled"})
    assert stop_undoing(flow.id, by="ina", reason="said twice") == 2
    finish([done(undoing)])
    assert_workflow(flow, "failed", {"undo second": "completed", "undo first": "cancelled"})
    assert stop_undoing(flow.id, by="ina", reason="said a third time") == 1
    gaps = [(gap["name"], gap["reason"]) for gap in Row.objects.get().gaps]
    assert gaps == [("first", "the wrong customer")], "the compensation that ran was made"
    assert retry_workflow(flow.id, by="ina") == 1
    finish([done(task) for task in take(hand)])
    assert_workflow(flow, "compensated", {"undo second": "completed", "undo first": "completed"})
    assert Row.objects.get().gaps == []
    with pytest.raises(InvalidTransition, match="compensated; nothing of it is being undone"):
        stop_undoing(flow.id, by="ina", reason="too late")


def test_a_caller_without_autocommit_cancels_a_task_of_a_workflow():
    flow = Workflow("manual")
    flow.add(node, "first")
    flow.enqueue()
    transaction.set_autocommit(False)
    try:
        cancel(Task.objects.get().id)
        transaction.commit()
    finally:
        transaction.set_autocommit(True)
    assert_workflow(flow, "cancelled", {"node": "cancelled"})


def test_what_is_held_is_never_purged():
    failing["first"] = 1
    flow, _ = two()
    work()
    Task.objects.update(created_at=LONG_AGO)
    Task.objects.filter(finished_at__isnull=False).update(finished_at=LONG_AGO)
    Row.objects.update(created_at=LONG_AGO, held_at=LONG_AGO)
    purge()
    assert Task.objects.filter(workflow_id=flow.id).count() == 2
    assert TaskDependency.objects.count() == 1


def test_an_expired_task_holds_what_waits_until_it_is_retried(engine):
    flow, first = two(first_task=node.using(queue_name="fast"))
    Task.objects.filter(pk=first.id).update(queued_at=LONG_AGO)
    assert expire_stale("fast", 1) == 1
    assert_workflow(flow, "running", {"first": "expired", "second": "blocked"})
    retry(first.id, by="ina")
    assert work() == ["first", "second"]


def test_two_running_tasks_add_at_once(engine):
    flow = Workflow("growing")
    parents = [flow.add(node, name) for name in ("a", "b")]
    end = flow.add_call(node, ("end",), name="end", after=parents)
    flow.enqueue()
    hand = engine.worker("tests.workers.flow_tasks.node")
    held = take(hand, 2)

    def add(task):
        graph = Graph(rows=[check_task(new("tests.workers.flow_tasks.node", args=["added"])) for _ in range(3)])
        add_nodes(flow.id, graph, added_by=task.key)

    at_once([lambda task=task: add(task) for task in held])
    assert Row.objects.get().nodes == 9
    finish([done(task) for task in held])
    assert row(end.id).status == "blocked", "it waits for what was added"
    finish([done(task) for task in take(hand, 6)])
    assert row(end.id).status == "queued"


@pytest.mark.parametrize(("is_local", "outcome"), [(True, nullcontext()), (False, pytest.raises(OperationalError))])
def test_only_tasks_behind_the_running_task_are_added_beside_other_ends(engine, is_local, outcome):
    flow = Workflow("growing")
    first, second = (flow.add(node, name) for name in ("a", "b"))
    flow.enqueue()
    held = take(engine.worker("tests.workers.flow_tasks.node"), 2)[0]
    graph = Graph(rows=[check_task(new("tests.workers.flow_tasks.node", args=["added"]))])
    if not is_local:
        other = second if held.id == first.id else first
        graph.edges[graph.rows[0].id, other.id] = "hold"
    with open_transaction(lambda: workflow_advance.share([flow.id])), outcome, transaction.atomic():
        fetch_all("SELECT set_config('lock_timeout', '100ms', true)")
        add_nodes(flow.id, graph, added_by=held.key)


def test_nothing_is_added_to_or_signalled_after_the_end():
    flow, _ = two()
    work()
    with pytest.raises(InvalidTransition, match="The workflow is completed; it takes no more signals"):
        signal(flow, "approved")
    with pytest.raises(InvalidTransition, match="is completed; it can no longer be cancelled"):
        cancel_workflow(flow.id)
    with pytest.raises(InvalidWorkflow, match="has ended; tasks cannot be added to it"):
        add_nodes(flow.id, Graph(rows=[check_task(new("tests.workers.flow_tasks.node", args=["x"]))]))


def test_a_failed_attempt_that_had_added_takes_it_back_once(engine):
    flow = Workflow("taken back")
    parent = flow.add(node.using(max_retries=1), "parent")
    flow.add(node, "end", after=[parent])
    flow.enqueue()
    hand = engine.worker("tests.workers.flow_tasks.node")
    (held,) = take(hand)
    add_nodes(
        flow.id, Graph(rows=[check_task(new("tests.workers.flow_tasks.node", args=["added"]))]), added_by=held.key
    )
    finish([failed(held)])
    assert Row.objects.get().nodes == 2
    assert Task.objects.filter(workflow_id=flow.id).count() == 2
