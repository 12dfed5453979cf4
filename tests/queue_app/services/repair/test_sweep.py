"""Entries without a queued row are removed from the index, also in lanes that no worker runs."""

import pytest

from queue_app.index import Index
from queue_app.models import Queue, Task
from queue_app.services.lifecycle.actions import cancel_many
from queue_app.services.repair import reconcile as module
from queue_app.services.repair.reconcile import Reconciler, reconcile_everything
from tests.queue_app.services.repair.test_reconcile import NOTHING
from tests.support import index_state
from tests.support.engine import assert_index_agrees, index_away, put, put_many, take
from tests.support.rows import erase


@pytest.fixture(autouse=True)
def no_rest(override):
    """Let each step begin a full pass, however long the last one took on a busy machine."""
    override(module, FACTOR=0)


def cancel_unheard(ids):
    with index_away("remove"):
        cancel_many(ids)


def waiting(engine):
    return index_state.check(engine.index).waiting


@pytest.mark.parametrize(
    "end",
    [cancel_unheard, lambda ids: erase(Task.objects.filter(pk__in=ids))],
    ids=["cancelled", "deleted"],
)
def test_entries_without_a_queued_row_go_when_there_were_too_many_twice(engine, end):
    """No worker runs this lane, so no claim meets them. Lanes with a user, a key and a weight are known by name too."""
    Queue.objects.update_or_create(pk="fair", defaults={"order": "fair"})
    ids = put_many(3) + put_many(2, queue="fair", user="u", concurrency_key="k", weight=3) + put_many(2, user="u")
    kept = {ids[0], put("other")}
    reconciler = Reconciler()
    assert reconciler.run_once() == NOTHING
    end(ids[1:])
    assert reconciler.run_once() == NOTHING
    assert waiting(engine) == kept | set(ids)
    assert reconciler.run_once() == NOTHING | {"entries_ended": 6}
    assert waiting(engine) == kept
    assert_index_agrees()
    assert reconciler.run_once() == NOTHING
    assert reconciler.sweep.cursors == {}


def test_reconcile_everything_removes_them_in_one_call(engine):
    cancel_unheard(put_many(2))
    assert reconcile_everything() == NOTHING | {"entries_ended": 2}
    assert_index_agrees()


def test_a_step_is_bounded_and_the_next_one_goes_on(engine, override):
    """Sets of more than 128 entries are read in pages."""
    override(module, STEP=1)
    ids = put_many(3500)
    cancel_unheard(ids[5:])
    reconciler = Reconciler()
    repairs = [reconciler.run_once()["entries_ended"] for _ in range(3)]
    while reconciler.sweep.cursors:
        repairs.append(reconciler.run_once()["entries_ended"])
    assert sum(repairs) == 3495
    assert repairs[0] == 0
    assert max(repairs) < 3000
    assert waiting(engine) == set(ids[:5])


def test_running_and_waiting_tasks_are_left_alone(engine):
    """More entries than rows were counted, as when rows came late: the sweep finds nothing to do."""
    ids = put_many(4)
    [running] = take(engine.worker())
    reconciler = Reconciler()
    for _ in range(3):
        reconciler.sweep.counted["default\x1fa\x1f"] -= 1
        assert reconciler.run_once() == NOTHING
    assert waiting(engine) == set(ids) - {running.id}
    assert_index_agrees()


QUESTIONS = {
    "before the removal": (module, "statuses"),
    "before the second question": (Index, "remove_entries"),
    "after the second question": (module.snapshot, "refs"),
}


@pytest.mark.parametrize("moment", QUESTIONS)
@pytest.mark.parametrize("is_late", [False, True], ids=["and is pushed at once", "and is pushed after the sweep"])
def test_a_row_that_becomes_queued_meanwhile_keeps_its_entry(engine, after, moment, is_late):
    """It has its old place, as after a give back, so the score does not distinguish the new entry from the old one."""
    ids = put_many(3)
    cancel_unheard(ids)
    queued = []

    def requeue():
        Task.objects.filter(pk__in=ids[:2]).update(status="queued", finished_at=None)
        queued.extend(module.snapshot.refs(ids[:2]))
        if not is_late:
            engine.index.push(queued)

    reconciler = Reconciler()
    reconciler.run_once()
    reconciler.next_page(engine.index, 100)
    after(*QUESTIONS[moment], requeue)
    reconciler.sweep.step(engine.index)
    assert len(queued) == 2
    if is_late:
        engine.index.push(queued)
    assert waiting(engine) == set(ids[:2])
    assert_index_agrees()
