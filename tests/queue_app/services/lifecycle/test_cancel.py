"""cancel: waiting tasks end, running tasks are asked to stop, ended tasks stay."""

import uuid

import pytest
from django.db import transaction
from django.tasks.base import TaskResultStatus

from queue_app.backend.results import load_result
from queue_app.core.states import Status
from queue_app.diagnose.explain import explain
from queue_app.exceptions import InvalidTaskData, InvalidTransition, TaskNotFound
from queue_app.models import Task
from queue_app.services.lifecycle.actions import cancel, cancel_many
from queue_app.services.lifecycle.finish import finish
from queue_app.services.repair.reconcile import Reconciler
from queue_app.sql import claim as claim_rows, snapshot
from tests.support.engine import assert_index_agrees, at_once, done, put, put_many, rolled_back, row, take
from tests.support.factories import TaskFactory

pytestmark = pytest.mark.both_ways


@pytest.mark.parametrize(("options", "before"), [({}, "queued"), ({"delay": 3600}, "scheduled")])
def test_a_waiting_task_ends_and_leaves_the_index(engine, history, options, before):
    task_id = put(**options)
    assert cancel(task_id) is Status.CANCELLED
    assert history.states(task_id) == f"{before} cancelled"
    assert row(task_id).finished_at is not None
    assert_index_agrees()
    assert take(engine.worker()) == []


def test_the_id_of_a_result_is_a_text(engine):
    first, second = put_many(2)
    assert cancel(str(first)) is Status.CANCELLED
    assert cancel_many([str(second)]) == {second: Status.CANCELLED}
    with pytest.raises(InvalidTransition, match="cancelled"):
        cancel(str(first))
    unknown = str(uuid.uuid4())
    with pytest.raises(TaskNotFound, match=unknown):
        cancel(unknown)


@pytest.mark.parametrize("given", ["first", "", 7, None])
def test_what_is_no_id_is_refused_by_name(given):
    with pytest.raises(InvalidTaskData, match=f"{given!r} is not an id; give a UUID"):
        cancel(given)


def test_a_blocked_task_is_pending_and_ready_stays_out_of_the_index_and_can_be_cancelled(engine, history):
    task_id = TaskFactory(status=Status.BLOCKED).id
    assert list(Task.objects.in_status("pending").values_list("id", flat=True)) == [task_id]
    result = load_result(task_id, "default")
    assert result is not None
    assert result.status is TaskResultStatus.READY
    Reconciler().run_once()
    assert_index_agrees()
    assert take(engine.worker()) == []
    assert [reason.code for reason in explain(task_id).reasons] == ["blocked"]
    assert cancel(task_id) is Status.CANCELLED
    assert history.states(task_id) == "blocked cancelled"


@pytest.mark.both_ways(False)
def test_an_executing_task_is_asked_to_stop(engine, history):
    task_id = put()
    [task] = take(engine.worker())
    assert cancel(task_id) is Status.EXECUTING
    asked = row(task_id).cancel_requested_at
    assert cancel(task_id) is Status.EXECUTING
    assert row(task_id).cancel_requested_at == asked, "once"
    assert history.states(task_id) == "queued executing"
    assert engine.check().leases == {task.id}


def test_what_has_ended_cannot_be_cancelled(engine):
    task_id = put()
    finish([done(task) for task in take(engine.worker())])
    with pytest.raises(InvalidTransition) as refused:
        cancel(task_id)
    assert refused.value.status is Status.COMPLETED


def test_many_of_every_kind(engine, hand):
    ended, running, waiting = put_many(3)
    finish([done(task) for task in take(hand)])
    take(hand)
    assert cancel_many([waiting, uuid.uuid4(), running, ended, waiting]) == {
        waiting: Status.CANCELLED,
        running: Status.EXECUTING,
    }
    assert_index_agrees()


@pytest.mark.both_ways(False)
def test_a_rolled_back_cancellation_is_silence(engine):
    task_id = put()
    with rolled_back():
        cancel(task_id)
    assert row(task_id).status == "queued"
    assert assert_index_agrees().waiting == {task_id}


@pytest.mark.both_ways(False)
def test_enqueued_and_cancelled_in_one_transaction(engine):
    with transaction.atomic():
        cancelled, kept = put_many(2)
        cancel(cancelled)
    assert assert_index_agrees().waiting == {kept}


@pytest.mark.both_ways(False)
def test_the_reconciler_leaves_no_lease_of_a_cancelled_task(engine, hand):
    """Proposed, cancelled before the row was claimed, and then the claimer died."""
    task_id = put()
    engine.index.claim(hand.profile, hand.id, 1)
    cancel(task_id)
    assert engine.check().leases == {task_id}
    reconciler = Reconciler()
    assert reconciler.run_once()["leases_ended"] == 0, "it may be about to be granted"
    assert reconciler.run_once()["leases_ended"] == 1
    assert_index_agrees()


def test_cancelling_and_claiming_at_once_never_runs_a_cancelled_task(engine, hand, history):
    ids = put_many(40)
    number = snapshot.generation()
    at_once(
        [
            lambda: [cancel_many([task_id]) for task_id in ids],
            lambda: [claim_rows.claim([task_id], hand.id, number, 1) for task_id in reversed(ids)],
        ]
    )
    assert {history.states(task_id) for task_id in ids} <= {"queued cancelled", "queued executing"}
