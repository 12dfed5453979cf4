"""What undoes a workflow is stopped only by name: every command said twice, in every order, at every door."""

import io
from contextlib import suppress
from itertools import product
from random import Random

import pytest
from django.core.management import CommandError, call_command
from django.urls import reverse

from queue_app import Workflow
from queue_app.diagnose.explain import explain
from queue_app.exceptions import InvalidTransition, InvalidWorkflow, TaskQueueError
from queue_app.models import AuditEntry, DeadLetter, Task, Workflow as Row, WorkflowNode
from queue_app.services.lifecycle.actions import cancel_many, discard_open, replay, replay_open, retry, retry_many
from queue_app.services.lifecycle.finish import finish
from queue_app.services.repair import reap
from queue_app.testing import assert_workflow
from queue_app.workflows import steer
from queue_app.workflows.builder import RunningWorkflow
from queue_app.workflows.read import WorkflowUpkeep
from queue_app.workflows.sql import holding
from tests.support.engine import assert_index_agrees, done, failed, take
from tests.support.pages import CONFIRMED
from tests.workers.flow_tasks import node, undo_once

pytestmark = pytest.mark.both_ways

TYPES = "tests.workers.flow_tasks.node tests.workers.flow_tasks.undo_once"


def undoing(engine, state="executing", **options):
    """Return a workflow whose last task failed, its worker, and the second of three compensations, which is in a state.

    ``dead_letter`` and ``failed`` hold it.
    """
    flow = Workflow("order", **{"on_failure": "cancel"} | options)
    before = []
    for name in ("pay", "reserve", "label"):
        before = [flow.add_call(node, (name,), name=name, after=before, compensate=undo_once)]
    flow.add_call(node, ("ship",), name="ship", after=before)
    flow.enqueue()
    hand = engine.worker(TYPES)
    for end in (done, done, done, failed):
        finish([end(task) for task in take(hand)])
    for one in holding(flow.id, 1):
        steer.skip_task(flow.id, one.id, by="ina")
    finish([done(task) for task in take(hand)])
    (task,) = take(hand)
    if state != "executing":
        finish([failed(task, retriable=state == "dead_letter")])
    assert_workflow(flow, "compensating", {"undo label": "completed", "undo reserve": state, "undo pay": "blocked"})
    return flow, hand, task


COMMANDS = {
    "cancel": lambda flow, _: steer.cancel_workflow(flow.id, by="ina"),
    "cancel tasks": lambda flow, _: cancel_many(list(Task.objects.values_list("id", flat=True))),
    "pause": lambda flow, _: steer.pause_workflow(flow.id, by="ina"),
    "resume": lambda flow, _: steer.resume_workflow(flow.id, by="ina"),
    "retry": lambda flow, _: steer.retry_workflow(flow.id, by="ina"),
    "replay": lambda flow, _: replay_open(list(DeadLetter.objects.open().values_list("id", flat=True)), by="ina"),
    "worker dies": lambda _, hand: reap.mark_dead(hand.id),
    "discard": lambda flow, _: discard_open(list(DeadLetter.objects.open().values_list("id", flat=True)), by="ina"),
    "skip": lambda flow, _: [steer.skip_task(flow.id, one.id, by="ina") for one in holding(flow.id, 1)],
    "done": lambda flow, _: [
        steer.skip_task(flow.id, one.id, by="ina", reason="by hand", done=True) for one in holding(flow.id, 1)
    ],
    "stop undoing": lambda flow, _: steer.stop_undoing(flow.id, by="ina", reason="enough"),
}
#: These alone leave a completed task as it is.
GIVING_UP = {"discard", "skip", "stop undoing"}


def settle(flow, hand):
    """Let everything that can run complete; then a person retries what holds the workflow."""
    for _ in range(20):
        WorkflowUpkeep().run_once()
        if tasks := take(hand):
            finish([done(task) for task in tasks])
        elif Row.objects.get(pk=flow.id).finished_at is not None:
            return
        elif holding(flow.id, 1):
            steer.retry_workflow(flow.id, by="ina")
        else:
            steer.resume_workflow(flow.id)
    raise AssertionError("it never ends")


def judge(flow, said):
    """Each completed task is undone once, or named as a gap, or was undone by hand."""
    row = Row.objects.get(pk=flow.id)
    gaps = {gap["name"] for gap in row.gaps}
    undone = dict.fromkeys(("pay", "reserve", "label"), "")
    extras = WorkflowNode.objects.filter(task__workflow_id=flow.id)
    names = dict(extras.exclude(name="").values_list("task_id", "name"))
    undoes = extras.exclude(compensates=None).values_list("compensates", "task__status", "closed")
    assert len(undoes) == len(undone), "each is undone once"
    for task_id, status, closed in undoes:
        undone[names[task_id]] = "done" if status == "completed" or closed == "done" else "gap"
    assert gaps == {name for name, what in undone.items() if what == "gap"}, (said, undone)
    assert gaps <= (undone.keys() if GIVING_UP & set(said) else set()), (said, gaps)
    assert (row.state == "failed") == any(closed == "stopped" for *_, closed in undoes), (said, row.state)
    assert row.state in {"compensated", "failed"}


@pytest.mark.parametrize("state", ["executing", "dead_letter", "failed"])
def test_only_what_gives_up_leaves_a_task_as_it_is(engine, state):
    """A command twice, then another one twice, while the workflow is undone."""
    for said in Random(state).sample([*product(COMMANDS, repeat=2)], 20):
        flow, hand, task = undoing(engine, state)
        for word in said:
            for _ in "12":
                with suppress(InvalidTransition):
                    COMMANDS[word](flow, hand)
        finish([done(task)])  # late, if the worker was declared dead or the task ended before
        settle(flow, engine.worker(TYPES))
        judge(flow, said)
    assert_index_agrees()


def test_a_compensation_without_a_dead_letter_has_the_same_ways_out(engine):
    flow, hand, _ = undoing(engine, "failed")
    (held,) = holding(flow.id, 5)
    assert held.undoes
    with pytest.raises(TaskQueueError, match="Give a reason"):
        steer.skip_task(flow.id, held.id, by="ina", done=True)
    with pytest.raises(InvalidTransition, match="only tasks that ended without success"):
        steer.skip_task(flow.id, Task.objects.get(status="blocked").id, by="ina")
    assert steer.skip_task(flow.id, held.id, by="ina", reason="they keep it") == 1
    assert_workflow(flow, "compensating", {"undo reserve": "failed", "undo pay": "queued"})
    finish([done(task) for task in take(hand)])
    assert_workflow(flow, "compensated", {"undo reserve": "failed", "undo pay": "completed"})
    row = Row.objects.get(pk=flow.id)
    assert [(gap["name"], gap["reason"]) for gap in row.gaps] == [("reserve", "they keep it")]
    assert steer.skip_task(flow.id, held.id, by="ina", reason="the customer sent it back", done=True) == 1
    row.refresh_from_db()
    assert (row.state, row.gaps) == ("compensated", [])


def test_a_failed_task_that_holds_its_workflow_is_skipped_like_a_dead_letter(engine):
    flow = Workflow("hold")
    first = flow.add_call(node, ("first",), name="first")
    flow.add_call(node, ("second",), name="second", after=[first])
    flow.enqueue()
    finish([failed(task, retriable=False) for task in take(engine.worker(TYPES))])
    assert_workflow(flow, "running", {"first": "failed", "second": "blocked"})
    reasons = {reason.code: reason.text for reason in explain(first.id).reasons}
    assert reasons["error"] == "Attempt 1 ended with builtins.ValueError."
    ways_out = (
        f"`taskqueue workflow retry {flow.id}`), or skip it (`taskqueue workflow skip {flow.id} --task {first.id}`)"
    )
    assert ways_out in reasons["holds_workflow"]
    with pytest.raises(CommandError, match=f"or `taskqueue workflow skip {flow.id} --task {first.id}`"):
        call_command("taskqueue", "replay", str(first.id))
    assert [steer.skip_task(flow.id, first.id, by="ina") for _ in "12"] == [1, 0]
    assert "holds_workflow" not in explain(first.id).codes
    assert_workflow(flow, "failed", {"first": "failed", "second": "cancelled"})


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("door", ["api", "admin", "command"])
def test_every_door_says_it_twice(engine, admin_client, door):
    flow, *_ = undoing(engine, "dead_letter")
    (held,) = holding(flow.id, 5)

    def say(action: str, **body) -> str:
        reason = {"reason": "twice"} | body
        if door == "command":
            options = [f"--task={body['task_id']}"] if "task_id" in body else []
            call_command("taskqueue", "workflow", action, str(flow.id), "--reason", "twice", *options)
            return ""
        if door == "admin":
            url = reverse(f"admin:queue_app_workflow_{action.replace('-', '_')}", args=[flow.id])
            answer = admin_client.post(url, CONFIRMED | reason | {"task": body.get("task_id", "")}, follow=True)
        else:
            url = f"/api/v1/workflows/{flow.id}/{action}"
            answer = admin_client.post(url, reason, content_type="application/json")
        assert answer.status_code == 200, answer.content
        return answer.content.decode()

    for _ in "12":
        say("cancel")
    assert_workflow(flow, "compensating", {"undo reserve": "dead_letter", "undo pay": "blocked"})
    if door == "admin":
        text = admin_client.get(reverse("admin:queue_app_workflow_change", args=[flow.id])).content.decode()
        assert "/cancel/" not in text
        asked = admin_client.post(reverse("admin:queue_app_workflow_stop_undoing", args=[flow.id])).content.decode()
        assert "2 completed tasks stay as they are: " in asked
    for _ in "12":
        text = say("skip", task_id=str(held.id))
    assert door == "command" or "reserve" in text
    assert_workflow(flow, "compensating", {"undo reserve": "dead_letter", "undo pay": "queued"})
    for _ in "12":
        say("stop-undoing")
    assert_workflow(flow, "failed", {"undo reserve": "dead_letter", "undo pay": "cancelled"})
    assert [(gap["name"], gap["reason"]) for gap in Row.objects.get(pk=flow.id).gaps] == [
        ("reserve", "twice"),
        ("pay", "twice"),
    ]
    said = list(AuditEntry.objects.order_by("id").values_list("action", flat=True))
    assert said == ["workflow.skip", "workflow.stop_undoing"], "what was said twice is recorded once"


@pytest.mark.parametrize("done_by_hand", [False, True])
def test_a_retry_leaves_alone_what_a_person_decided(engine, done_by_hand):
    """A second refund beside the one that was made by hand would be one too many."""
    flow, hand, _ = undoing(engine, "dead_letter")
    (held,) = holding(flow.id, 5)
    steer.skip_task(flow.id, held.id, by="ina", reason="by hand", done=done_by_hand)
    (last,) = take(hand)
    finish([failed(last)])
    assert steer.retry_workflow(flow.id, by="ina") == 1
    assert_workflow(flow, "compensating", {"undo reserve": "dead_letter", "undo pay": "queued"})
    finish([done(task) for task in take(hand)])
    assert_workflow(flow, "compensated", {"undo reserve": "dead_letter", "undo pay": "completed"})
    if done_by_hand:
        with pytest.raises(InvalidTransition, match="was undone"):
            steer.retry_workflow(flow.id, by="ina")
        retry(held.id)  # by name, it is made after all
    else:
        assert steer.retry_workflow(flow.id, by="ina") == 1
    finish([done(task) for task in take(hand)])
    assert_workflow(flow, "compensated", {"undo reserve": "completed"})
    assert Row.objects.get(pk=flow.id).gaps == []


def test_what_a_workflow_did_before_it_was_undone_does_not_run_again(engine, admin_client):
    """Nothing is shipped after its payment was refunded, while the refunds are made or later."""
    flow, hand, task = undoing(engine)
    (letter,) = DeadLetter.objects.open()
    for state in ("compensating", "compensated"):
        for again in (
            lambda: retry(letter.task_id),
            lambda: replay(letter.id, by="ina"),
            lambda: call_command("taskqueue", "replay", str(letter.task_id)),
        ):
            with pytest.raises((InvalidTransition, CommandError)):
                again()
        with pytest.raises(InvalidTransition, match="What had completed was undone; enqueue a new workflow"):
            replay(letter.id, by="ina")
        with pytest.raises(CommandError, match=f"{letter.task_id}: What had completed was undone"):
            call_command("taskqueue", "replay", str(letter.id))
        call_command("taskqueue", "replay", "--all", "--wait", stdout=(out := io.StringIO()))
        assert f"0 of 1 replayed\n  {letter.id}: What had completed was undone" in out.getvalue()
        assert "What had completed was undone" in "\n".join(explain(letter.task_id).lines())
        answer = admin_client.post(f"/api/v1/dlq/{letter.id}/replay", {}, content_type="application/json")
        assert answer.status_code == 409
        assert "was undone" in answer.content.decode()
        assert (retry_many([letter.task_id]), replay_open([letter.id], by="ina")) == (set(), [])
        assert_workflow(flow, state, {"ship": "dead_letter"})
        if state == "compensating":
            finish([done(task)])
            finish([done(other) for other in take(hand)])
    discard_open([letter.id], by="ina")
    assert_workflow(flow, "compensated", {"undo pay": "completed"})


def test_a_cancel_that_is_repeated_after_the_end_changes_nothing(engine):
    flow, hand, task = undoing(engine, on_failure="hold")
    assert steer.cancel_workflow(flow.id) == 0
    finish([done(task)])
    finish([done(other) for other in take(hand)])
    assert_workflow(flow, "compensated", {"undo pay": "completed"})
    assert steer.cancel_workflow(flow.id) == 0
    assert_workflow(flow, "compensated")


def test_a_running_task_that_completes_although_it_was_asked_to_stop_is_undone(engine):
    flow = Workflow("order")
    flow.add_call(node, ("pay",), name="pay", compensate=undo_once)
    flow.add_call(node, ("look",), name="look")
    flow.enqueue()
    hand = engine.worker(TYPES)
    running = take(hand, 2)
    assert steer.cancel_workflow(flow.id) == 2
    finish([done(task, '"paid"') for task in running])
    assert_workflow(flow, "compensating", {"pay": "completed", "look": "cancelled", "undo pay": "queued"})
    finish([done(task) for task in take(hand)])
    assert_workflow(flow, "compensated", {"undo pay": "completed"})
    assert_index_agrees()


def test_one_of_several_compensations_that_were_stopped_is_made_after_all(engine):
    flow, hand, task = undoing(engine)
    steer.stop_undoing(flow.id, by="ina", reason="enough")
    finish([done(task)])
    assert_workflow(flow, "failed", {"undo reserve": "completed", "undo pay": "cancelled"})
    assert [gap["name"] for gap in Row.objects.get(pk=flow.id).gaps] == ["pay"], "the running one was asked too late"
    flow, hand, task = undoing(engine, "failed")
    steer.stop_undoing(flow.id, by="ina", reason="enough")
    retry(WorkflowNode.objects.get(task__workflow_id=flow.id, task__status="cancelled").task_id)
    assert_workflow(flow, "compensating", {"undo reserve": "failed", "undo pay": "queued"})
    finish([done(other) for other in take(hand)])
    assert_workflow(flow, "failed", {"undo reserve": "failed", "undo pay": "completed"})
    assert [gap["name"] for gap in Row.objects.get(pk=flow.id).gaps] == ["reserve"]


def test_a_compensation_adds_nothing_to_its_workflow(engine):
    """A cancel of what it added would cancel the compensations that wait for it."""
    flow, _, task = undoing(engine, on_failure="hold")
    with pytest.raises(InvalidWorkflow, match="is being undone"):
        RunningWorkflow(flow.id, task.key).add(node, "more")
