"""make_due: scheduled tasks whose time has come are queued, earliest first."""

from datetime import UTC, datetime, timedelta

import pytest

from queue_app.models import Task
from queue_app.services.repair.reconcile import Reconciler
from queue_app.services.upkeep.promote import make_due
from tests.support.engine import assert_index_agrees, at_once, index_away, put, take_ids

pytestmark = pytest.mark.both_ways

PAST = datetime(2026, 1, 1, tzinfo=UTC)


def scheduled(minutes_ago: float, **options) -> object:
    """Enqueue a scheduled task that has been due for some minutes."""
    task_id = put(run_after=datetime.now(UTC) + timedelta(hours=1), **options)
    Task.objects.filter(pk=task_id).update(run_after=PAST - timedelta(minutes=minutes_ago))
    return task_id


@pytest.mark.both_ways(False)
def test_only_due_tasks_are_queued(engine, history):
    due, later = scheduled(1), put(run_after=datetime.now(UTC) + timedelta(hours=1))
    assert make_due() == 1
    assert history.states(due) == "scheduled queued"
    assert history.states(later) == "scheduled"
    assert assert_index_agrees().waiting == {due}
    assert make_due() == 0


def test_tasks_that_come_due_together_run_in_the_order_of_their_times(engine):
    ids = [scheduled((n * 7) % 50, queue="pq"[n % 2], kind="ab"[n % 2]) for n in range(50)]
    expected = [task_id for _, task_id in sorted(zip([-((n * 7) % 50) for n in range(50)], ids, strict=True))]
    assert make_due() == 50
    assert take_ids(engine.worker("a b"), 50) == expected


def test_a_due_task_queues_behind_waiting_tasks(engine):
    first = put()
    due = scheduled(1)
    make_due()
    last = put()
    assert take_ids(engine.worker(), 3) == [first, due, last]


@pytest.mark.both_ways(False)
def test_the_earliest_come_first_when_there_are_too_many(engine):
    ids = [scheduled(n) for n in range(5)]
    assert make_due(limit=2) == 2
    assert engine.check().waiting == {ids[4], ids[3]}


def test_two_schedulers_at_once_queue_each_task_once(engine, history):
    ids = [scheduled(n) for n in range(40)]
    assert sum(at_once([lambda: make_due(limit=7) for _ in range(8)])) == 40
    assert all(history.states(task_id) == "scheduled queued" for task_id in ids)
    assert_index_agrees()


@pytest.mark.both_ways(False)
def test_tasks_queued_without_the_index_are_found(engine):
    task_id = scheduled(1)
    with index_away("push"):
        assert make_due() == 1
    assert engine.check().waiting == set()
    assert Reconciler().run_once()["missing"] == 1
    assert assert_index_agrees().waiting == {task_id}
