"""Upkeep of workflows: deadlines, forgotten tasks, retention, and what a pause holds back."""

from dataclasses import replace
from datetime import timedelta

import pytest
from django.utils import timezone

from queue_app import Workflow, conf, signal
from queue_app.exceptions import WorkflowNotFound
from queue_app.index import Index, get_index
from queue_app.models import (
    DeadLetter,
    DependencyCounter,
    StepResult,
    Task,
    TaskDependency,
    Workflow as Row,
    WorkflowNode,
)
from queue_app.services.enqueue.admission import expire_stale
from queue_app.services.lifecycle.actions import cancel, retry_many
from queue_app.services.lifecycle.claim import recover
from queue_app.services.lifecycle.finish import finish
from queue_app.services.repair.reap import mark_dead, reap_orphans
from queue_app.services.upkeep import maintenance
from queue_app.services.upkeep.maintenance import purge
from queue_app.sql.database import atomic
from queue_app.sql.finish import complete
from queue_app.sql.workflow_advance import complete as complete_in_workflow, lock
from queue_app.workflows.read import WorkflowUpkeep
from queue_app.workflows.steer import cancel_workflow, pause_workflow, resume_workflow, retry_workflow
from tests.support.engine import Side, assert_index_agrees, done, failed, held_up, open_transaction, row, take
from tests.workers.flow_tasks import node

LONG_AGO = timezone.now() - timedelta(days=400)


@pytest.fixture
def hand(engine):
    return engine.worker("tests.workers.flow_tasks.node")


def two(**options):
    """Enqueue a task and one that waits for it; return the workflow and both ids."""
    flow = Workflow("two", **options)
    first = flow.add(node, "first", compensate=node)
    second = flow.add(node, "second", after=[first])
    flow.enqueue()
    return flow, first.id, second.id


def test_a_workflow_is_cancelled_at_its_deadline(engine):
    flow, first, second = two(deadline=timedelta(hours=1))
    WorkflowUpkeep().run_once()
    assert row(first).status == "queued"
    Row.objects.update(deadline=LONG_AGO)
    WorkflowUpkeep().run_once()
    assert {row(first).status, row(second).status} == {"cancelled"}
    stored = Row.objects.get(pk=flow.id)
    assert (stored.state, stored.cancel_reason) == ("cancelled", "its deadline has passed")


def test_the_sweep_finds_a_forgotten_task_and_queues_it(hand):
    """Nothing makes one but a statement that ends a task and does not advance its workflow."""
    _, _, second = two()
    complete([done(task) for task in take(hand)])
    assert WorkflowUpkeep().run_once() == 1
    assert row(second).status == "queued"
    assert WorkflowUpkeep().run_once() == 0
    assert get_index().stats().counts["repair:forgotten_tasks"] == 1


@pytest.mark.parametrize("parents", [2, 2500])
def test_of_two_ends_at_once_the_later_one_opens_what_waits_for_both(engine, parents):
    """The later one waits for the counter, and reads it again; 2500 parents are counted in shards."""
    flow = Workflow("fan-in")
    many = flow.add_many(node, [((str(number),), {}) for number in range(parents)])
    last = flow.add(node, "last", after=[many])
    flow.enqueue()
    hand = engine.worker("tests.workers.flow_tasks.node")
    tasks = [task for _ in range(parents // 500 + 1) for task in take(hand, 500)]
    finish([done(task) for task in tasks[:-2]])
    with atomic():
        complete_in_workflow([flow.id], [done(tasks[-2])])
        later = held_up(lambda: finish([done(tasks[-1])]))
    assert later.result() == {tasks[-1].id}
    assert row(last.id).status == "queued"
    assert not DependencyCounter.objects.exists(), "the counters go when the task is queued"
    assert WorkflowUpkeep().run_once() == 0, "nothing was forgotten"


def test_a_large_workflow_is_deleted_in_parts_which_nobody_sees_and_a_crash_leaves_to_the_next_run(hand, override):
    flow = Workflow("large")
    many = flow.add_many(node, [((str(number),), {}) for number in range(5)])
    flow.add(node, "end", after=[many])
    flow.enqueue()
    cancel_workflow(flow.id)
    Task.objects.update(finished_at=LONG_AGO)
    Row.objects.update(finished_at=LONG_AGO)
    override(maintenance, PURGE_BATCH=2)
    assert maintenance.purge_workflows(conf.get().retention, 0.0) == 2, "one part, as if it were killed then"
    assert not Row.objects.filter(pk=flow.id).exists()
    with pytest.raises(WorkflowNotFound):
        retry_workflow(flow.id, by="ina")
    assert retry_many(list(Task.objects.values_list("id", flat=True))) == set(), "nothing of it runs again"
    assert purge() == 4
    assert not Task.objects.exists()
    assert not Row._base_manager.exists()
    assert not TaskDependency.objects.exists()
    assert not DependencyCounter.objects.exists()


def test_a_workflow_is_deleted_as_a_whole_after_it_has_ended(hand):
    flow, first, _ = two()
    finish([done(task) for task in take(hand)])
    Task.objects.filter(pk=first).update(finished_at=LONG_AGO)
    assert purge() == 0, "a part of it has not ended"
    assert Task.objects.filter(workflow_id=flow.id).count() == 2
    finish([done(task) for task in take(hand)])
    Row.objects.update(finished_at=LONG_AGO)
    assert purge() == 2
    for model in (Task, Row, TaskDependency, DependencyCounter, WorkflowNode):
        assert not model.objects.exists()


def test_a_dead_letter_past_its_retention_gives_up_what_waits(hand):
    flow, _, second = two()
    finish([failed(task) for task in take(hand)])
    DeadLetter.objects.update(expires_at=LONG_AGO)
    assert purge() == 0
    assert row(second).status == "cancelled"
    assert Row.objects.get(pk=flow.id).state == "failed"


def test_a_signal_does_not_end_a_pause(hand):
    flow, first, _ = two()
    [task] = take(hand)
    StepResult.objects.create(
        task_id=first, attempt=task.attempt, position=1, name="go", kind="signal", signal="go", stored_at=timezone.now()
    )
    finish([replace(done(task), waits=True)])
    pause_workflow(flow.id, by="ina")
    signal(first, "go")
    assert row(first).status == "blocked"
    assert take(hand) == []
    assert resume_workflow(flow.id) == 1
    assert [task.id for task in take(hand)] == [first]


def test_a_cancelled_task_takes_with_it_what_waits_for_it(engine):
    flow, first, second = two()
    cancel(first)
    assert row(second).status == "cancelled"
    assert Row.objects.get(pk=flow.id).state == "cancelled"


def test_a_pause_keeps_what_is_resumed_before_the_index_knows_of_the_pause(engine, before):
    """Resumed tasks have their old places, so the late removal would take them out of the index."""
    flow, first, _ = two()
    before(Index, "remove", lambda: Side(lambda: resume_workflow(flow.id)).result())
    pause_workflow(flow.id, by="ina")
    assert assert_index_agrees().waiting == {first}


def test_tasks_of_a_workflow_that_another_transaction_has_alone_are_left_to_the_next_turn(hand):
    """The lock of a workflow comes before the rows of its tasks; the other order ends in a deadlock with a cancel."""
    _, first, _ = two()
    _, second, _ = two()
    with the_workflow_alone(second):
        assert expire_stale("default", 0.0) == 1
    assert (row(first).status, row(second).status) == ("expired", "queued")
    take(hand)
    with the_workflow_alone(second):
        assert mark_dead(hand.id) == 0
    assert reap_orphans() == 1
    assert row(second).status == "queued"


def test_a_worker_returns_unacknowledged_tasks_once_no_other_transaction_has_their_workflow_alone(hand):
    _, first, _ = two()
    take(hand)
    with the_workflow_alone(first):
        side = held_up(lambda: recover(hand.id, []))
        with atomic():
            assert Task.objects.select_for_update(nowait=True).get(pk=first), "its row is free meanwhile"
    side.result()
    assert row(first).status == "queued"


def the_workflow_alone(task_id):
    """Hold the lock of the task's workflow by another connection."""
    return open_transaction(lambda: lock([row(task_id).workflow_id]))
