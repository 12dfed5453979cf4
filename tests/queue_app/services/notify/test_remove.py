"""remove_on_commit: a removal that comes late leaves alone what was queued again meanwhile."""

from datetime import UTC, datetime, timedelta

import pytest

from queue_app.index import Index
from queue_app.models import Task
from queue_app.services.enqueue.admission import expire_stale
from queue_app.services.lifecycle.actions import cancel, cancel_many, retry
from queue_app.services.notify.index import remove_on_commit
from queue_app.services.upkeep.promote import make_due
from queue_app.sql import snapshot
from tests.support.engine import Side, assert_index_agrees, put, put_many, take_ids


@pytest.fixture
def before_removal(before):
    """Return a function that lets another process act once, before the next removal reaches the index."""
    return lambda action: before(Index, "remove", lambda: Side(action).result())


WAYS = {"cancel": cancel, "expire": lambda _: expire_stale("default", 0.0)}


@pytest.mark.parametrize("way", WAYS)
def test_a_task_that_is_tried_again_before_its_removal_stays(engine, before_removal, way):
    task_id = put()
    before_removal(lambda: retry(task_id, by="ina"))
    WAYS[way](task_id)
    assert assert_index_agrees().waiting == {task_id}
    assert take_ids(engine.worker()) == [task_id]


def test_a_postponed_task_that_is_due_before_its_removal_stays(engine, before_removal):
    task_id = put()
    [task] = snapshot.refs([task_id])

    Task.objects.filter(pk=task_id).update(
        status="scheduled", queued_at=None, run_after=datetime.now(UTC) - timedelta(seconds=1)
    )
    before_removal(make_due)
    remove_on_commit([task])
    assert assert_index_agrees().waiting == {task_id}


def test_the_others_of_a_removal_are_gone(engine, before_removal):
    ids = put_many(3)
    before_removal(lambda: retry(ids[1], by="ina"))
    cancel_many(ids)
    assert assert_index_agrees().waiting == {ids[1]}


def test_a_task_that_runs_again_before_its_removal_keeps_its_slot(engine, before_removal):
    task_id, hand = put(), engine.worker()

    def run_again():
        retry(task_id, by="ina")
        assert take_ids(hand) == [task_id]

    before_removal(run_again)
    cancel(task_id)
    assert not assert_index_agrees().waiting
