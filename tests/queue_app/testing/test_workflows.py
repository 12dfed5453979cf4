"""The same workflows with a worker, and with the kit for tests of projects."""

from datetime import timedelta

import pytest
from django.tasks.exceptions import InvalidTask

from queue_app import Workflow, chain, group, signal, task
from queue_app.core.states import Status
from queue_app.exceptions import InvalidTaskData, InvalidWorkflow
from queue_app.models import DeadLetter, Workflow as Row
from queue_app.registry import type_of
from queue_app.services.lifecycle.actions import cancel, discard, replay
from queue_app.services.upkeep.promote import make_due
from queue_app.testing import assert_workflow, drain
from queue_app.workflows.read import WorkflowUpkeep
from queue_app.workflows.steer import cancel_workflow, pause_workflow, resume_workflow, retry_workflow, stop_undoing
from tests.workers.flow_tasks import (
    charge,
    failing,
    grow,
    label,
    large,
    lengths,
    node,
    numbers,
    ran,
    refund,
    square,
    total,
    undo,
    undo_once,
)
from tests.workers.stage import StillWorker


@task(takes_context=True, max_retries=0)
def waits(context, name):
    return context.wait_for(name)


@task(takes_context=True, max_retries=0, signals={"approved": {"ok": bool}})
def approvable(context):
    return context.wait_for("approved")["ok"]


class Rows:
    """The real engine."""

    def work(self):
        StillWorker(concurrency=1).until_empty()
        make_due()
        StillWorker(concurrency=1).until_empty()
        assert WorkflowUpkeep().run_once() == 0, "nothing was forgotten"

    def cancel(self, flow):
        cancel_workflow(flow.id)

    def stop_undoing(self, flow):
        stop_undoing(flow.id, by="ina", reason="enough")

    def gaps(self, flow):
        return [gap["name"] for gap in Row.objects.get(pk=flow.id).gaps]

    def pause(self, flow):
        pause_workflow(flow.id, by="ina")

    def resume(self, flow):
        resume_workflow(flow.id)

    def retry(self, flow):
        return retry_workflow(flow.id, by="ina")

    def replay(self):
        replay(DeadLetter.objects.open().latest("died_at").id, by="ina")

    def discard(self, kind=""):
        discard(DeadLetter.objects.open().get(task_type__endswith=kind).id, by="ina")

    def cancel_task(self, task_id):
        cancel(task_id)


class Kit:
    """The kit for tests of projects."""

    def __init__(self, backend):
        self.backend = backend

    def work(self):
        drain()

    def cancel(self, flow):
        self.backend.workflow(flow.id).cancel()

    def stop_undoing(self, flow):
        self.backend.workflow(flow.id).stop_undoing()

    def gaps(self, flow):
        return self.backend.workflow(flow.id).gaps

    def pause(self, flow):
        self.backend.workflow(flow.id).pause()

    def resume(self, flow):
        self.backend.workflow(flow.id).resume()

    def retry(self, flow):
        return self.backend.workflow(flow.id).retry()

    def replay(self):
        self.backend.replay(self.backend.in_state(Status.DEAD_LETTER)[-1].id)

    def discard(self, kind=""):
        (letter,) = (one for one in self.backend.in_state(Status.DEAD_LETTER) if type_of(one.task).endswith(kind))
        self.backend.discard(letter.id)

    def cancel_task(self, task_id):
        self.backend.cancel(task_id)


@pytest.fixture(params=["worker", "kit"])
def kit(request, engine):
    ran.clear()
    failing.clear()
    if request.param == "kit":
        yield Kit(request.getfixturevalue("task_queue"))
    else:
        yield Rows()
    ran.clear()
    failing.clear()


def names() -> list[str]:
    found = [name for name, _ in ran]
    ran.clear()
    return found


def test_results_flow_along_the_edges(kit):
    flow = Workflow("ship order", user="ina")
    pay = flow.add(charge, 7)
    stick = flow.add(label, after=[pay], address=pay.result["address"])
    flow.add(node, "ship", stick.result, after=[stick, flow.add(node, "pack", after=[pay])])
    flow.enqueue()
    assert_workflow(flow, "running", {"charge": "queued", "label": "blocked", "node": ["blocked", "blocked"]})
    kit.work()
    assert_workflow(flow, "completed")
    assert ran[-1] == ("ship", "label to Riga")


def test_chains_groups_and_maps(kit):
    chain((numbers, 4), total, group(square, square).then(total)).enqueue("sums")
    kit.work()
    assert names() == ["numbers", "total", "square", "square", "total"]
    flow = Workflow("squares")
    count = flow.add(numbers, 3)
    squares = flow.map(square, over=count.result)
    flow.add(total, squares.result, after=[squares])
    flow.enqueue()
    kit.work()
    assert ran[-1] == ("total", [0, 1, 4])
    assert_workflow(flow, "completed", {"square": ["completed"] * 3, "total": "completed"})


def test_what_a_running_task_adds_comes_before_what_waits_for_it(kit):
    flow = Workflow("growing")
    flow.add(node, "after", after=[flow.add(grow, "seed", ["a", "b"])])
    flow.enqueue()
    kit.work()
    assert names() == ["seed", "a", "b", "after"]
    assert_workflow(flow, "completed")


def join(count):
    flow = Workflow("join")
    parts = flow.add_many(large, [((1000,), {}) for _ in range(count)])
    total = flow.add_call(lengths, (parts.result,), name="lengths", after=[parts])
    flow.enqueue()
    return flow, str(total.id)


def test_results_that_flow_into_a_task_have_a_limit_of_their_own(kit, settings):
    """The limit of one payload is 256 KiB; 300 results of 1 KB are more."""
    flow, total = join(300)
    kit.work()
    assert lengths.get_result(total).return_value == [1000] * 300
    settings.TASKQUEUE = {**settings.TASKQUEUE, "WORKFLOWS": {"MAX_INPUT_BYTES": 2000}}
    flow, total = join(3)
    kit.work()
    assert_workflow(flow, "failed", {"lengths": "failed"})
    (error,) = lengths.get_result(total).errors
    assert error.exception_class_path == "queue_app.exceptions.InputTooLarge"


def diamond(undo=undo, **options):
    flow = Workflow("diamond", **options)
    top = flow.add_call(node, ("top",), name="top", compensate=undo)
    sides = [flow.add_call(node, (name,), name=name, after=[top], compensate=undo) for name in ("left", "right")]
    flow.add_call(node, ("bottom",), name="bottom", after=sides)
    flow.enqueue()
    return flow


def test_a_dead_letter_holds_until_it_is_replayed(kit):
    failing["left"] = 1
    flow = diamond()
    kit.work()
    assert_workflow(
        flow, "running", {"top": "completed", "left": "dead_letter", "right": "completed", "bottom": "blocked"}
    )
    kit.replay()
    kit.work()
    assert names()[-2:] == ["left", "bottom"]
    assert_workflow(flow, "completed")


def test_a_discarded_dead_letter_undoes_what_had_completed(kit):
    failing["left"] = 1
    flow = diamond()
    kit.work()
    names()
    kit.discard()
    kit.work()
    assert names() == ["undo right", "undo top"]
    assert_workflow(flow, "compensated", {"bottom": "cancelled", "undo top": "completed", "undo right": "completed"})
    kit.cancel(flow)
    assert_workflow(flow, "compensated")


def test_encrypted_tasks_are_undone(kit, settings):
    settings.TASKQUEUE = {**settings.TASKQUEUE, "ENCRYPTION": {"KEYS": ["k:" + 42 * "a" + "A"], "TASKS": ["*"]}}
    failing["left"] = 1
    flow = diamond()
    kit.work()
    kit.discard()
    kit.work()
    assert_workflow(flow, "compensated", {"undo top": "completed", "undo right": "completed"})


def test_a_second_cancel_leaves_compensations_alone(kit):
    failing["undo right"] = 1
    flow = diamond(undo=undo_once)
    failing["bottom"] = 1
    kit.work()
    kit.cancel(flow)  # "bottom" holds it; what had completed is undone
    kit.cancel(flow)
    kit.work()
    assert_workflow(flow, "compensating", {"undo right": "dead_letter", "undo top": "blocked"})
    kit.cancel(flow)  # while a compensation holds it
    assert_workflow(flow, "compensating", {"undo right": "dead_letter", "undo top": "blocked"})
    kit.replay()
    kit.work()
    assert names()[-3:] == ["undo right", "undo left", "undo top"]
    assert_workflow(flow, "compensated", {"undo left": "completed", "undo top": "completed"})
    kit.cancel(flow)
    assert kit.gaps(flow) == []


def test_a_discarded_compensation_is_a_gap_and_the_others_go_on(kit):
    failing["undo right"] = failing["bottom"] = 1
    flow = diamond(on_failure="cancel", undo=undo_once)
    kit.work()
    kit.discard("undo_once")
    kit.work()
    assert names()[-3:] == ["undo right", "undo left", "undo top"]
    assert_workflow(flow, "compensated", {"undo right": "dead_letter", "undo top": "completed"})
    assert kit.gaps(flow) == ["right"]
    assert kit.retry(flow) == 1
    kit.work()
    assert_workflow(flow, "compensated", {"undo right": "completed"})
    assert kit.gaps(flow) == []


def test_undoing_is_stopped_by_its_own_command(kit):
    failing["undo right"] = failing["bottom"] = 1
    flow = diamond(on_failure="cancel", undo=undo_once)
    kit.work()
    kit.stop_undoing(flow)
    assert_workflow(flow, "failed", {"undo right": "dead_letter", "undo left": "cancelled", "undo top": "cancelled"})
    assert kit.gaps(flow) == ["right", "left", "top"]


@pytest.mark.parametrize(("policy", "state"), [("cancel", "failed"), ("continue", "completed")])
def test_other_policies(kit, policy, state):
    failing["left"] = 1
    flow = Workflow("policy", on_failure=policy)
    flow.add_call(node, ("end",), name="end", after=[flow.add(node, "left")])
    flow.enqueue()
    kit.work()
    assert_workflow(flow, state, {"end": "completed" if policy == "continue" else "cancelled"})


@pytest.mark.parametrize("fails", [True, False])
def test_a_task_for_the_failure_of_another(kit, fails):
    failing["risky"] = int(fails)
    flow = Workflow("handled")
    risky = flow.add_call(node, ("risky",), name="risky")
    flow.add_call(node, ("sorry",), name="sorry", after=[risky.if_failed])
    flow.add_call(node, ("tidy",), name="tidy", after=[risky.even_if_failed])
    flow.enqueue()
    kit.work()
    assert_workflow(flow, "completed", {"sorry": "completed" if fails else "cancelled", "tidy": "completed"})


def test_a_compensation_takes_the_result(kit):
    failing["ship"] = 1
    flow = Workflow("order", on_failure="cancel")
    flow.add(node, "ship", after=[flow.add(charge, 3, compensate=refund)])
    flow.enqueue()
    kit.work()
    assert ran[-1] == ("refund", (3, "pay-3"))
    assert_workflow(flow, "compensated")


def test_pause_resume_cancel_and_retry(kit):
    flow = diamond()
    kit.pause(flow)
    kit.work()
    assert names() == []
    kit.resume(flow)
    kit.work()
    assert_workflow(flow, "completed")
    flow = diamond()
    kit.cancel(flow)
    kit.work()
    assert_workflow(flow, "cancelled", {"top": "cancelled", "bottom": "cancelled"})
    assert kit.retry(flow) == 4
    kit.work()
    assert_workflow(flow, "completed")


def test_a_cancelled_task_cancels_what_waits_for_it(kit):
    flow = Workflow("plain")
    first = flow.add_call(node, ("first",), name="first")
    flow.add_call(node, ("second",), name="second", after=[first])
    flow.enqueue()
    kit.cancel_task(str(first.id))
    assert_workflow(flow, "cancelled", {"first": "cancelled", "second": "cancelled"})


def test_a_cap_keeps_the_order(kit):
    flow = Workflow("capped", max_concurrent=2)
    flow.add_many(node, [((f"n{n}",), {}) for n in range(5)])
    flow.enqueue()
    assert_workflow(flow, "running", {"node": ["blocked"] * 3 + ["queued"] * 2})
    kit.work()
    assert names() == [f"n{n}" for n in range(5)]


def test_a_signal_to_the_workflow_wakes_one_of_its_tasks(kit):
    flow = Workflow("approval")
    flow.add(node, "paid", after=[flow.add(waits, "approved")])
    flow.enqueue()
    kit.work()
    assert_workflow(flow, "running", {"waits": "blocked"})
    assert signal(flow, "approved", {"by": "ina"}) is True
    kit.work()
    assert_workflow(flow, "completed")


def test_a_missing_key_fails_the_task_at_once(kit):
    flow = Workflow("missing")
    pay = flow.add(charge, 1)
    flow.add(label, after=[pay], address=pay.result["adress"])
    flow.enqueue()
    kit.work()
    assert_workflow(flow, "failed", {"label": "failed"})


def test_bad_graphs_are_refused_alike(kit):
    with pytest.raises(InvalidWorkflow, match="has no tasks"):
        Workflow("empty").enqueue()
    flow, other = Workflow("one"), Workflow("other")
    flow.add(node, "x", after=[other.add(node, "y")])
    with pytest.raises(InvalidWorkflow, match="not in the workflow"):
        flow.enqueue()
    flow = Workflow("late", deadline=timedelta(seconds=-1))
    flow.add(node, "x")
    with pytest.raises(InvalidWorkflow, match="in the future"):
        flow.enqueue()


def test_assert_workflow_says_what_it_found(kit):
    flow = diamond()
    with pytest.raises(AssertionError, match="bottom blocked"):
        assert_workflow(flow, "completed")
    with pytest.raises(AssertionError, match="top queued"):
        assert_workflow(flow, "running", {"top": "completed"})


def checked(name, **options):
    """Return a workflow that is meant to be a part: ``ask``, then ``answer``; ``sorry`` if that fails."""
    part = Workflow(name, **options)
    ask = part.add_call(node, ("ask",), name="ask", compensate=undo)
    answer = part.add_call(node, ("answer", ask.result), name="answer", after=[ask])
    part.add_call(node, ("sorry",), name="sorry", after=[answer.if_failed])
    return part


def whole(**options):
    flow = Workflow("whole", user="ina", **options)
    first = flow.add(charge, 1)
    part = flow.add(checked("part"), after=[first])
    flow.add_call(node, ("end", part.result), name="end", after=[part])
    flow.enqueue()
    return flow


def test_a_workflow_is_a_part_of_another_and_hands_its_result_on(kit):
    flow = whole()
    kit.work()
    assert names() == ["charge", "ask", "answer", "end"]
    assert_workflow(flow, "completed", {"sorry": "cancelled", "end": "completed"})


def test_a_failure_in_a_part_holds_the_whole(kit):
    failing["answer"] = 1
    flow = whole()
    kit.work()
    assert_workflow(flow, "running", {"answer": "dead_letter", "sorry": "completed", "end": "blocked"})
    kit.replay()
    kit.work()
    assert_workflow(flow, "completed")


def test_a_cancel_of_the_whole_undoes_the_part(kit):
    failing["end"] = 1
    flow = whole(on_failure="cancel")
    kit.work()
    assert_workflow(flow, "compensated", {"undo ask": "completed"})


def test_what_cannot_be_a_part_is_refused(kit):
    flow = Workflow("whole")
    part = checked("part")
    flow.add(part)
    for bad, sentence in (
        (flow, "cannot be a part of itself"),
        (part, "is enqueued already, or a part"),
        (Workflow("empty"), "has no tasks"),
        (checked("late", deadline=timedelta(hours=1)), "deadline belongs to the whole"),
        (checked("capped", max_concurrent=1), "max_concurrent belongs to the whole"),
    ):
        with pytest.raises(InvalidWorkflow, match=sentence):
            flow.add(bad)
    with pytest.raises(InvalidWorkflow, match="part of another"):
        part.enqueue()


@pytest.mark.parametrize("waits_already", [False, True])
def test_declared_signals_are_checked_early_and_late(kit, waits_already):
    result = approvable.enqueue()
    if waits_already:
        kit.work()
    for name, payload, sentence in (
        ("aproved", {"ok": True}, "takes no signal 'aproved'. It takes approved"),
        ("approved", {"ok": "yes"}, "ok must be of the type boolean"),
        ("approved", None, "payload must be an object with ok"),
    ):
        with pytest.raises(InvalidTaskData, match=sentence):
            signal(result, name, payload)
    assert signal(result, "approved", {"ok": True}) is waits_already
    kit.work()
    result.refresh()
    assert result.return_value is True


def test_signals_are_declared_well_or_refused():
    with pytest.raises(InvalidTask, match="signals must be"):
        task(takes_context=True, signals=["approved"])(lambda context: None)


def test_a_replay_lets_a_workflow_go_on_that_had_ended(kit):
    failing["first"] = 1
    flow = Workflow("ended", on_failure="continue")
    first = flow.add_call(node, ("first",), name="first")
    flow.add_call(node, ("second",), name="second", after=[first])
    flow.enqueue()
    kit.work()
    assert_workflow(flow, "completed", {"first": "dead_letter", "second": "completed"})
    kit.replay()
    assert_workflow(flow, "running", {"first": "queued"})
    kit.work()
    assert_workflow(flow, "completed", {"first": "completed"})
    assert names() == ["first", "second", "first"]
