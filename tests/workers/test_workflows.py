"""Workflows on real workers: order, results, failures, compensations, commands."""

import pytest

from queue_app import Workflow, chain, group
from queue_app.core import graph, trace
from queue_app.models import DeadLetter, DependencyCounter, Task, TaskPayload, TaskResult, Workflow as Row
from queue_app.services.lifecycle.actions import discard, replay
from queue_app.services.upkeep.promote import make_due
from queue_app.workflows.read import WorkflowUpkeep
from queue_app.workflows.steer import cancel_workflow, pause_workflow, resume_workflow, retry_workflow
from tests.support.engine import assert_index_agrees, row
from tests.workers.flow_tasks import (
    charge,
    failing,
    grow,
    label,
    node,
    numbers,
    ran,
    refund,
    refuse,
    square,
    total,
    undo,
)


@pytest.fixture(autouse=True)
def clean():
    yield
    ran.clear()
    failing.clear()


@pytest.fixture
def work(hire):
    """Let a worker run everything that can start; return the names of what ran."""
    worker = hire()

    def run() -> list[str]:
        worker.until_empty()
        assert_index_agrees()
        assert WorkflowUpkeep().run_once() == 0, "nothing was forgotten"
        names = [name for name, _ in ran]
        ran.clear()
        return names

    return run


def state(flow) -> str:
    return Row.objects.get(pk=flow.id).state


def states(flow) -> dict[str, int]:
    found = {}
    for status in Task.objects.filter(workflow_id=flow.id).values_list("status", flat=True):
        found[status] = found.get(status, 0) + 1
    return found


def test_each_task_runs_after_those_it_waits_for_and_gets_their_results(work):
    flow = Workflow("ship order", user="ina")
    pay = flow.add(charge, 7)
    stick = flow.add(label, after=[pay], address=pay.result["address"])
    pack = flow.add(node, "pack", after=[pay])
    ship = flow.add(node, "ship", stick.result, pay.result["address"]["city"], after=[pack, stick])
    flow.enqueue()
    assert states(flow) == {"queued": 1, "blocked": 3}
    names = work()
    assert (names[0], set(names[1:3]), names[3]) == ("charge", {"label", "pack"}, "ship")
    assert TaskResult.objects.get(pk=ship.id).value == "ship"
    assert row(ship.id).user == "ina"
    assert state(flow) == "completed"


def test_a_chain_hands_results_on_and_a_group_collects_them(work):
    flow_id = chain((numbers, 4), total, group(square, square).then(total)).enqueue("sums")
    assert work() == ["numbers", "total", "square", "square", "total"]
    assert Row.objects.get(pk=flow_id).state == "completed"
    assert TaskResult.objects.latest("task_id").value == 72
    flow_id = group([(square, n) for n in range(5)]).then(total).enqueue()
    assert work()[-1] == "total"
    assert TaskResult.objects.get(task__workflow_id=flow_id, task__task_type__endswith="total").value == 30


def test_a_map_fans_out_over_a_result_and_what_follows_waits_for_all(work):
    flow = Workflow("squares")
    count = flow.add(numbers, 5)
    squares = flow.map(square, over=count.result)
    flow.add(total, squares.result, after=[squares])
    flow.enqueue()
    assert work() == ["numbers", *["square"] * 5, "total"]
    assert TaskResult.objects.get(task__task_type__endswith="total").value == 30
    assert state(flow) == "completed"
    assert Row.objects.get(pk=flow.id).nodes == 8


def test_a_running_task_adds_tasks_and_a_failed_attempt_takes_its_own_back(work):
    flow = Workflow("growing")
    flow.add(node, "after", after=[flow.add(grow, "seed", ["a", "b"])])
    failing["seed"] = 1
    flow.enqueue()
    assert work() == ["seed"]
    assert states(flow) == {"scheduled": 1, "blocked": 1}, "what the failed attempt added is gone"
    Task.objects.filter(workflow_id=flow.id, status="scheduled").update(run_after="2026-01-01T00:00Z")
    make_due()
    assert work() == ["seed", "a", "b", "after"]
    assert state(flow) == "completed"


def diamond(**options):
    flow = Workflow("diamond", **options)
    top = flow.add(node, "top", compensate=undo)
    left, right = (flow.add(node, name, after=[top], compensate=undo) for name in ("left", "right"))
    flow.add(node, "bottom", after=[left, right])
    flow.enqueue()
    return flow


def test_a_dead_letter_holds_what_waits_until_it_is_replayed(work):
    failing["left"] = 1
    flow = diamond()
    assert set(work()) == {"top", "left", "right"}
    assert states(flow) == {"completed": 2, "dead_letter": 1, "blocked": 1}
    assert Row.objects.get(pk=flow.id).held_at is not None
    replay(DeadLetter.objects.get().id, by="ina")
    assert work() == ["left", "bottom"]
    assert state(flow) == "completed"
    assert Row.objects.get(pk=flow.id).held_at is None


def test_a_discarded_dead_letter_cancels_what_waits_and_undoes_what_had_completed(work):
    failing["left"] = 1
    flow = diamond()
    work()
    discard(DeadLetter.objects.get().id, by="ina")
    assert state(flow) == "compensating"
    assert work() == ["undo right", "undo top"], "in the reverse order of their completion"
    assert state(flow) == "compensated"
    assert states(flow) == {"completed": 4, "dead_letter": 1, "cancelled": 1}


def test_a_compensation_that_fails_is_a_dead_letter_and_holds(work):
    failing.update({"left": 1, "undo right": 9})
    flow = diamond(on_failure="cancel")
    assert "undo right" in work()
    assert state(flow) == "compensating"
    for _ in range(4):
        Task.objects.filter(workflow_id=flow.id, status="scheduled").update(run_after="2026-01-01T00:00Z")
        make_due()
        work()
    letter = DeadLetter.objects.get(task_type__endswith="undo")
    assert Row.objects.get(pk=flow.id).held_at is not None
    failing.clear()
    replay(letter.id, by="ina")
    assert work() == ["undo right", "undo top"]
    assert state(flow) == "compensated"


def test_a_compensation_takes_the_result_of_what_it_undoes(work):
    failing["ship"] = 1
    flow = Workflow("order", on_failure="cancel")
    flow.add(node, "ship", after=[flow.add(charge, 3, compensate=refund)])
    flow.enqueue()
    worker_ran = work()
    assert worker_ran == ["charge", "ship", "refund"]
    assert state(flow) == "compensated"


def test_other_policies_cancel_the_rest_or_continue_without_the_task(work):
    failing["left"] = 2
    flow = Workflow("cancelling", on_failure="cancel")
    left = flow.add(node, "left")
    flow.add(node, "after left", after=[left])
    flow.add(node, "last", after=[flow.add(node, "slow", after=[flow.add(node, "other")])])
    flow.enqueue()
    work()
    assert state(flow) == "failed"
    assert Task.objects.filter(workflow_id=flow.id, status__in=["blocked", "queued"]).count() == 0
    flow = Workflow("continuing", on_failure="continue")
    flow.add(node, "end", after=[flow.add(node, "left"), flow.add(node, "right")])
    flow.enqueue()
    assert set(work()) == {"left", "right", "end"}
    assert state(flow) == "completed"


def test_a_task_runs_only_if_another_fails_or_is_skipped(work):
    failing["risky"] = 1
    for runs in (True, False):
        flow = Workflow("handled")
        risky = flow.add(node, "risky")
        flow.add(node, "apologise", after=[risky.if_failed])
        flow.add(node, "tidy", after=[risky.even_if_failed])
        flow.enqueue()
        assert set(work()) == ({"risky", "apologise", "tidy"} if runs else {"risky", "tidy"})
        assert state(flow) == "completed"


def test_a_refused_task_holds_until_the_workflow_is_cancelled_or_retried(work):
    flow = Workflow("refused")
    flow.add(node, "after", after=[flow.add(refuse, "no")])
    flow.enqueue()
    assert work() == ["no"]
    assert Row.objects.get(pk=flow.id).held_at is not None
    assert retry_workflow(flow.id, by="ina") == 1
    assert work() == ["no"]
    assert cancel_workflow(flow.id, reason="given up") == 1
    assert states(flow) == {"failed": 1, "cancelled": 1}
    assert Row.objects.get(pk=flow.id).finished_at is not None


def test_a_cancelled_workflow_starts_nothing_more(work):
    flow = diamond()
    assert cancel_workflow(flow.id) == 4
    assert state(flow) == "cancelled"
    assert work() == []


def test_nothing_of_a_paused_workflow_starts_and_a_resume_goes_on(work):
    flow = diamond()
    assert pause_workflow(flow.id, by="ina", reason="stock") == 1
    assert work() == []
    assert states(flow) == {"blocked": 4}
    assert resume_workflow(flow.id) == 1
    assert work()[0] == "top"
    assert state(flow) == "completed"


def test_retry_runs_what_failed_and_what_was_cancelled_with_it(work):
    failing["left"] = 1
    flow = diamond_without_compensations()
    work()
    discard(DeadLetter.objects.get().id, by="ina")
    assert state(flow) == "failed"
    assert retry_workflow(flow.id, by="ina") == 2
    assert states(flow) == {"completed": 2, "queued": 1, "blocked": 1}
    assert work() == ["left", "bottom"]
    assert state(flow) == "completed"


def diamond_without_compensations():
    flow = Workflow("plain diamond")
    top = flow.add(node, "top")
    sides = [flow.add(node, name, after=[top]) for name in ("left", "right")]
    flow.add(node, "bottom", after=sides)
    flow.enqueue()
    return flow


def test_at_most_max_concurrent_of_its_tasks_are_open(engine, history, work):
    flow = Workflow("capped", max_concurrent=2)
    flow.add_many(node, [((f"n{n}",), {}) for n in range(9)])
    flow.enqueue()
    assert states(flow) == {"queued": 2, "blocked": 7}
    assert len(work()) == 9
    assert state(flow) == "completed"
    assert history.most_executing() <= 2


def test_a_missing_part_of_a_result_fails_the_task_at_once_and_says_what_is_missing(work):
    flow = Workflow("missing")
    pay = flow.add(charge, 1)
    flow.add(label, after=[pay], address=pay.result["adress"])
    flow.enqueue()
    assert work() == ["charge"]
    failed = Task.objects.get(workflow_id=flow.id, status="failed")
    message = failed.attempts.get().message
    assert f"The result of the task {pay.id} has no 'adress'" in message
    assert "has the keys 'id', 'address'" in message


def test_a_wide_fan_in_counts_in_shards(work, monkeypatch):
    monkeypatch.setattr(graph, "SHARD_SIZE", 10)
    flow = Workflow("wide")
    many = flow.add_many(node, [((f"n{n}",), {}) for n in range(25)])
    flow.add(node, "end", after=[many])
    flow.enqueue()
    assert sorted(DependencyCounter.objects.values_list("shard", "remaining")) == [(0, 3), (1, 10), (2, 10), (3, 5)]
    assert work()[-1] == "end"
    assert not DependencyCounter.objects.exists()
    assert state(flow) == "completed"


def test_one_trace_over_the_whole_workflow(work):
    """What a task adds, a map and compensations belong to it too."""
    flow = Workflow("growing")
    seed = flow.add(grow, "seed", ["a"])
    count = flow.add(numbers, 2, after=[seed])
    squares = flow.map(square, over=count.result)
    paid = flow.add(node, "paid", after=[squares], compensate=undo)
    flow.add(node, "last", after=[paid])
    failing["last"] = 1
    flow.enqueue()
    work()
    discard(DeadLetter.objects.get().id, by="ina")
    assert work() == ["undo paid"]
    traces = TaskPayload.objects.values_list("trace", flat=True)
    assert {each[3:35] for each in traces} == {flow.id.hex}
    assert len(traces) == 9


def test_a_workflow_belongs_to_the_trace_of_its_caller(work):
    parent = trace.new()
    with trace.use(parent):
        chain((node, "a"), (node, "b")).enqueue()
    assert set(TaskPayload.objects.values_list("trace", flat=True)) == {parent}


def test_a_held_workflow_that_is_cancelled_is_undone_at_once(work):
    """Also if nothing waits for the dead letter: whoever cancels the workflow need not discard it too."""
    flow = Workflow("held")
    paid = flow.add(node, "paid", compensate=undo)
    flow.add(node, "last", after=[paid])
    failing["last"] = 1
    flow.enqueue()
    work()
    assert Row.objects.get(pk=flow.id).held_at is not None
    cancel_workflow(flow.id, reason="no hope")
    assert work() == ["undo paid"]
    assert state(flow) == "compensated"
    assert Row.objects.get(pk=flow.id).held_at is None
