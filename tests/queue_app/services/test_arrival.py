"""A queue of the order ``arrival``: first in, first out over all bands, wherever the order shows."""

from datetime import timedelta

import pytest
from django.db import connection

from queue_app.core.priorities import Band
from queue_app.diagnose.explain import explain
from queue_app.index import get_index
from queue_app.models import Queue, Task
from queue_app.services.control.queues import apply
from queue_app.services.lifecycle.actions import reprioritise
from queue_app.services.lifecycle.claim import give_back
from queue_app.services.lifecycle.finish import finish
from queue_app.services.read.inspect import list_tasks, task_detail
from queue_app.services.read.stats import depths_of_rows
from queue_app.services.read.task_filter import TaskFilter
from queue_app.services.repair.rebuild import rebuild, rebuild_if_needed
from queue_app.services.repair.reconcile import Reconciler
from queue_app.services.upkeep.promote import make_due, promote
from tests.support.engine import assert_index_agrees, failed, flush, put, put_many, row, take, take_ids
from tests.support.index_state import client_of

BANDS = [band.label for band in reversed(Band)]  # background first: a queue of bands would turn this order round


def order_by(order: str, queue: str = "default") -> None:
    """Set the order of a queue as staff do."""
    found, _ = Queue.objects.get_or_create(pk=queue)
    found.order = order
    found.save()


@pytest.fixture
def arrivals(engine):
    """An engine whose queue ``default`` goes by arrival, and no other."""
    order_by("arrival")
    return engine


def test_tasks_start_as_they_came_whatever_their_band(arrivals):
    ids = [put(priority=band) for band in BANDS] + put_many(2, priority="critical")
    assert assert_index_agrees().limits["default"] == {"arrival": "1"}
    assert take_ids(arrivals.worker(), 10) == ids


def test_beside_other_queues_its_tasks_count_as_normal(arrivals):
    background, critical = put(priority="background"), put(priority="critical")
    low, high, normal = (put(priority=band, queue="other") for band in ("low", "high", "normal"))
    assert take_ids(arrivals.worker(), 10) == [high, background, critical, normal, low]


def test_age_lifts_no_task(arrivals):
    ids = [put(priority=band) for band in BANDS]
    Task.objects.update(queued_at=row(ids[0]).queued_at - timedelta(days=1))
    flush(arrivals)
    rebuild()
    assert promote().total == 0
    assert get_index().depth("default").counts == dict.fromkeys(Band, 0) | {Band.NORMAL: 5}
    assert_index_agrees()


def test_reconciler_and_rebuild_find_nothing_to_move(arrivals):
    ids = [put(priority=band) for band in (*BANDS, *BANDS)]
    assert set(Reconciler().run_once().values()) == {0}
    before = assert_index_agrees()
    flush(arrivals)
    rebuild()
    assert assert_index_agrees().lanes == before.lanes
    client_of(get_index()).zadd(f"{get_index().keys.prefix}:lane:default\x1fa\x1f", {ids[3].bytes: 7.0})
    assert Reconciler().run_once()["missing"] == 1
    assert take_ids(arrivals.worker(), 20) == ids


def test_a_new_order_takes_effect_for_the_tasks_that_wait(engine):
    """The index refuses claims until a worker has built it again, which a claim does."""
    ids = [put(priority=band) for band in BANDS]
    order_by("arrival")
    assert get_index().generation().state == "rebuilding"
    assert rebuild_if_needed() is not None
    assert_index_agrees()
    hand = engine.worker()
    first = take(hand, 2)
    assert [task.id for task in first] == ids[:2]
    give_back(first)
    order_by("fifo")
    rebuild_if_needed()
    assert_index_agrees()
    assert take_ids(engine.worker(), 10) == ids[::-1]


def test_retries_delays_and_new_bands_keep_to_the_time_at_which_a_task_became_due(arrivals):
    first, second = put(priority="background", max_retries=1, retry_delay=0.001), put(priority="critical")
    hand = arrivals.worker()
    (task,) = take(hand)
    finish([failed(task)])
    later = put(delay=3600, priority="critical")
    third = put(priority="normal")
    reprioritise(third, "critical")
    with connection.cursor() as cursor:
        cursor.execute("UPDATE queue_app_task SET run_after = now() - interval '1 second' WHERE status = 'scheduled'")
    assert make_due() == 2
    assert_index_agrees()
    found = take_ids(hand, 10)
    assert found[:2] == [second, third]
    assert set(found[2:]) == {first, later}


def test_everything_that_names_a_band_agrees(arrivals):
    """Detail, lists, filters, counts by the rows, and the reasons name one band, and each task its own too."""
    ids = [put(priority=band) for band in BANDS]
    normal = dict.fromkeys(ids, Band.NORMAL)
    assert {task_id: task_detail(task_id).task.effective_band for task_id in ids} == normal
    listed = list_tasks(Task.objects.all(), TaskFilter(), page_size=10).tasks
    assert {task.id: task.effective_band for task in listed} == normal
    assert {task.id: task.effective_band for task in Task.objects.with_effective_priority()} == normal
    assert {task.band for task in listed} == set(Band)
    for band in Band:
        found = list_tasks(Task.objects.all(), TaskFilter(effective_bands=[band]), page_size=10).tasks
        assert len(found) == (5 if band is Band.NORMAL else 0)
    assert depths_of_rows()["default"].counts == get_index().depth("default").counts
    for ahead, task_id in enumerate(ids):
        place = next(reason for reason in explain(task_id).reasons if reason.code == "position")
        assert place.details["ahead"] == ahead
        assert task_detail(task_id).queue_position == ahead + 1
    assert take_ids(arrivals.worker()) == ids[:1]
    assert task_detail(ids[0]).task.effective_band is Band.BACKGROUND


def test_a_scenario_sets_it_as_it_tried_it(arrivals):
    (queue,) = apply({"queue:default": {"by_arrival": False}}, by="ada", via="test", reason="")
    assert queue.order == "fifo"
    (queue,) = apply({"queue:default": {"by_arrival": True}}, by="ada", via="test", reason="")
    assert queue.order == "arrival"
    (queue,) = apply({"queue:default": {"fair_by": "key"}}, by="ada", via="test", reason="")
    assert (queue.order, queue.fair_by) == ("fair", "key")
    (queue,) = apply({"queue:default": {"fair_by": None}}, by="ada", via="test", reason="")
    assert queue.order == "fifo"
