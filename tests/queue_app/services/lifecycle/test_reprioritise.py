"""reprioritise: waiting tasks move to another band and keep their time."""

import uuid
from datetime import UTC, datetime, timedelta

import pytest
from django.db import transaction

from queue_app.core.priorities import Band
from queue_app.exceptions import InvalidTaskData, InvalidTransition, TaskNotFound
from queue_app.services.lifecycle.actions import reprioritise, reprioritise_many
from queue_app.services.repair.reconcile import Reconciler
from queue_app.services.upkeep.promote import make_due
from tests.support.engine import assert_index_agrees, index_away, put, put_many, rolled_back, row, take, take_ids

pytestmark = pytest.mark.both_ways


def test_a_raised_task_comes_first_and_keeps_its_time(engine, history):
    first, second, third = put_many(3)
    before = row(third).queued_at
    reprioritise(third, Band.CRITICAL)
    assert row(third).queued_at == before
    assert history.states(third) == "queued"
    assert_index_agrees()
    assert take_ids(engine.worker(), 3) == [third, first, second]


def test_within_a_band_the_time_of_queueing_counts(engine):
    old, new = put(priority="low"), put(priority="high")
    assert reprioritise_many([new, old, uuid.uuid4()], Band.NORMAL) == {old, new}
    assert_index_agrees()
    assert take_ids(engine.worker(), 2) == [old, new]


def test_id_and_band_may_be_texts(engine):
    first, second = put_many(2)
    reprioritise(str(second), "high")
    assert row(second).priority == Band.HIGH
    assert reprioritise_many([str(first)], "low") == {first}
    assert row(first).priority == Band.LOW
    with pytest.raises(InvalidTaskData, match="'urgent' is not a priority; use one of critical, high"):
        reprioritise(first, "urgent")


def test_a_scheduled_task_takes_its_band_along(engine):
    task_id = put(run_after=datetime.now(UTC) + timedelta(hours=1))
    reprioritise(task_id, Band.HIGH)
    assert engine.check().waiting == set()
    type(row(task_id)).objects.update(run_after="2026-01-01T00:00Z")
    make_due()
    assert_index_agrees()
    assert row(task_id).band is Band.HIGH


def test_what_no_longer_waits_keeps_its_band(engine):
    task_id = put()
    take(engine.worker())
    with pytest.raises(InvalidTransition) as refused:
        reprioritise(task_id, Band.HIGH)
    assert refused.value.status == "executing"
    assert row(task_id).band is Band.NORMAL
    with pytest.raises(TaskNotFound):
        reprioritise(uuid.uuid4(), Band.HIGH)


def test_a_rollback_leaves_the_place(engine):
    task_id = put()
    with rolled_back():
        reprioritise(task_id, Band.HIGH)
    assert row(task_id).band is Band.NORMAL
    assert_index_agrees()


def test_enqueued_and_reprioritised_in_one_transaction(engine):
    with transaction.atomic():
        task_id = put()
        reprioritise(task_id, Band.HIGH)
    assert_index_agrees()


def test_a_lost_notification_is_repaired(engine):
    task_id = put()
    with index_away("push"):
        reprioritise(task_id, Band.HIGH)
    assert Reconciler().run_once()["missing"] == 1
    assert_index_agrees()


@pytest.mark.both_ways(False)
def test_a_task_under_claim_is_left_alone_by_the_index(engine, hand):
    """The lease is there, the row not yet granted: the worker that claims it gets the row with its new band."""
    task_id = put()
    engine.index.claim(hand.profile, hand.id, 1)
    reprioritise(task_id, Band.HIGH)
    assert engine.check().waiting == set()
